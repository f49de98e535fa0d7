"""The process that makes a whole PCFG data set: `python -m raysweep.bench.exact.million REQUEST FILE`.

It samples sentences and computes the exact conditionals of all positions, the entropy of each sentence, the
lengths and the counts of words.  It keeps only the statistics.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from raysweep.bench.process import hold

#: Sentences in memory at a time, and sentences with their conditionals in memory at a time.
CHUNK, TABLE = 8192, 2048


def run(sentences: int, threads: int) -> dict[str, Any]:
    """Return CPU and wall seconds, peak memory and the statistics."""
    import torch

    from raysweep.languages import PCFG, Estimate

    torch.set_num_threads(threads)
    began, started = time.perf_counter(), time.process_time()
    language = PCFG.random()
    lengths = torch.zeros(language.max_length + 1, dtype=torch.int64)
    counts = torch.zeros(language.vocabulary_size + 1, dtype=torch.int64)
    entropies = []
    for start in range(0, sentences, CHUNK):
        ids = language.sample(min(CHUNK, sentences - start), seed=0, start=start)
        for rows in torch.split(ids, TABLE):
            language.conditionals(rows)
        entropies.append(language.sentence_entropy(ids))
        lengths += language.lengths(ids).bincount(minlength=len(lengths))
        counts += ids.reshape(-1).bincount(minlength=len(counts))
    entropy = Estimate.of(torch.cat(entropies))
    return {
        "cpu_seconds": time.process_time() - started,
        "wall_seconds": time.perf_counter() - began,
        "peak_gib": peak_gib(),
        "entropy": entropy.value,
        "standard_error": entropy.standard_error,
        "lengths": lengths.tolist(),
        "words": counts[:-1].tolist(),
    }


def peak_gib() -> float:
    """Return the most memory this process has held.

    `getrusage` would include the memory of the parent, which a child shares until it loads its program.
    """
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    if found is None:
        raise OSError("/proc/self/status: no line VmHWM")
    return int(found[1]) / 2**20


if __name__ == "__main__":
    request, file = json.loads(sys.argv[1]), Path(sys.argv[2])
    hold(request["threads"])
    file.write_text(json.dumps(run(**request)), encoding="utf-8")
