"""Running a whole evaluation in this process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Prints the page faults of an evaluation whose process has run it twice before.
_PROGRAM = """
import resource
import torch
from raysweep import registry
from raysweep.evaluation.run import run_evaluation
from raysweep.languages import HMM
from raysweep.models import EncoderConfig
from raysweep.models.subject import ModelSubject

torch.set_num_threads(1)
language = HMM.random(seed=0)
subject = ModelSubject(language, EncoderConfig(shape="64/4/1/256").build(language, seed=0))
evaluation = registry.evaluations.decode({"kind": "excess_loss", "sentences": 512})
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run_evaluation(evaluation, subject)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept by means of glibc")
def test_freed_memory_is_kept_between_evaluations() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Without that, it is more than twenty thousand.
    assert int(done.stdout) < 5000
