"""Random faults on a sweep until it is done: the results are those of an undisturbed launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.bench.record import load

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, 20])
def test_faults_change_no_result(raysweep: Run, tmp_path: Path, kills: int) -> None:
    file = tmp_path / "chaos.json"
    code, out, err = raysweep("bench", "chaos", "--kills", str(kills), "--output", file, timeout=3500)
    assert code == 0, out + err
    record = load(file)
    assert all(found.equal and found.points_unlike == 0 for found in record.passes)
    launches = [launch for found in record.passes for launch in found.launches]
    assert sum(len(launch.faults) for launch in launches) == kills
    assert launches[-1].code == 0
