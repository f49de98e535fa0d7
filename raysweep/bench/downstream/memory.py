"""The memory that contestants take, as figures of a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from raysweep.bench.record import Figure, Peak, Timing


def memory(work: Mapping[str, Callable[[], object]], timing: Timing | None, peak: Peak) -> Sequence[Figure]:
    """Return the memory that each contestant takes beyond what the process holds before."""
    return [
        Figure(name=f"memory that {name} takes", unit="GiB", value=added_memory(call))
        for name, call in work.items()
    ]


def added_memory(call: Callable[[], object]) -> float:
    """Return the most memory in GiB that this process holds during a call beyond what it held before."""
    # The kernel then counts the peak anew.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 2**20


def _status(field: str) -> int:
    """Return a field of this process' status in kB."""
    found = re.search(rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status: no line {field}")
    return int(found[1])
