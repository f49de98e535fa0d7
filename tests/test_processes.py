"""The processes of a launch: found in a made-up /proc, and a real one's child followed to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysweep import processes
from raysweep.processes import Sample, Watch, below, parse, snapshot, title

TICKS = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path, pid: int, parent: int, *, name: str = "x", state: str = "S", seconds: int = 0
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = [state, parent, *[0] * 9, seconds * TICKS, 0, *[0] * 6, 100 + pid, 0, 3]
    (folder / "stat").write_text(f"{pid} ({name}) " + " ".join(map(str, fields)) + "\n")
    (folder / "cmdline").write_bytes(name.encode() + b"\0--some=thing\0")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A driver (2) with a raylet (3), a worker of it (5), a child that has ended (6); and a stranger (4)."""
    process(tmp_path, 1, 0)
    process(tmp_path, 2, 1, name="/usr/bin/python3", seconds=10)
    process(tmp_path, 3, 2, name="/some/where/raylet", seconds=1)
    process(tmp_path, 4, 1, name="ray::RayTrainWorker", seconds=500)
    process(tmp_path, 5, 3, name="ray::trace@300  ", seconds=5)
    process(tmp_path, 6, 2, state="Z")
    (tmp_path / "7").mkdir()
    (tmp_path / "uptime").write_text("1 1\n")
    return tmp_path


def test_the_age_of_a_process_is_that_since_its_start() -> None:
    program = "import time; time.sleep(0.5); from raysweep.processes import age; print(age())"
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert 0.5 <= float(told) <= time.monotonic() - began + 1 / TICKS


def test_a_line_of_stat() -> None:
    line = f"12 (a ) (b) R 3 12 12 0 -1 0 0 0 0 0 {TICKS} {2 * TICKS} 7 7 20 0 1 0 42 4096 2"
    found = parse(line)
    assert (found.pid, found.parent, found.state, found.seconds, found.key) == (12, 3, "R", 3.0, (12, 42))
    assert found.resident == 2 * os.sysconf("SC_PAGE_SIZE")


def test_only_descendants_are_found(proc: Path) -> None:
    every = snapshot(proc)
    assert sorted(every) == [1, 2, 3, 4, 5]
    assert [p.pid for p in below([2], every)] == [2, 3, 5]
    assert [p.pid for p in below([5, 2, 99], every)] == [5, 2, 3]
    assert below([99], every) == []


def test_titles(proc: Path) -> None:
    assert [title(pid, proc) for pid in (2, 3, 5, 99)] == ["python3", "raylet", "ray::trace@300", ""]
    (proc / "2" / "cmdline").write_bytes(b"/usr/bin/python3\0-m\0some.module\x006\0")
    assert title(2, proc) == "python3 -m some.module"
    (proc / "2" / "cmdline").write_bytes(b"/bin/python3\0-P\0-m\0some.module\0-m\0x\0")
    assert title(2, proc) == "python3 -m some.module"


def test_a_watch_follows_orphans_and_counts_the_ended(proc: Path) -> None:
    watch = Watch(2, proc=proc)
    watch.look()
    # The raylet ends; its worker gets another parent, and works on.
    (proc / "3" / "stat").unlink()
    process(proc, 5, 1, name="ray::trace@300", seconds=7)
    # The number of the raylet is used again, by a stranger.
    process(proc, 3, 1, seconds=1000)
    (proc / "3" / "stat").write_text((proc / "3" / "stat").read_text().replace(" 103 ", " 999 "))
    assert [p.pid for p in watch.look()] == [2, 5]
    assert [sample.cpu_seconds for sample in watch.samples] == [16.0, 18.0]
    (proc / "2" / "stat").unlink()
    (proc / "5" / "stat").unlink()
    assert watch.look() == []
    assert watch.samples[-1].cpu_seconds == 18.0


def test_cpu_time_between_samples(proc: Path) -> None:
    watch = Watch(2, proc=proc)
    watch.samples = [
        Sample(time=time, cpu_seconds=cpu, processes=1, root=0) for time, cpu in [(10.0, 4.0), (12.0, 8.0)]
    ]
    assert [watch.cpu_at(moment) for moment in (9.0, 10.0, 11.5, 12.0, 99.0)] == [4.0, 4.0, 7.0, 8.0, 8.0]


def test_shared_memory(proc: Path) -> None:
    (proc / "2" / "smaps_rollup").write_text("Rss: 2000 kB\nPss:   123 kB\nPss_Dirty: 5 kB\n")
    assert processes.shared_memory(2, proc) == 123 * 1024
    assert processes.shared_memory(99, proc) == 0


@pytest.mark.skipif(not processes.PROC.joinpath("self", "stat").exists(), reason="there is no /proc here")
def test_a_real_process() -> None:
    code = "import time; start = time.process_time()\nwhile time.process_time() - start < 0.3: pass"
    running = subprocess.Popen([sys.executable, "-c", f"{code}\nimport time; time.sleep(60)"])
    watch = Watch(running.pid, period=0.05, memory=True)
    watch.start()
    try:
        deadline = time.monotonic() + 30
        while (not watch.samples or watch.samples[-1].cpu_seconds < 0.3) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [p.pid for p in watch.alive()] == [running.pid]
    finally:
        running.kill()
        running.wait()
        watch.close()
    assert watch.alive() == []
    assert watch.samples[-1].cpu_seconds >= 0.3
    assert max(sample.memory for sample in watch.samples) > 1 << 20
    assert max(sample.root for sample in watch.samples) > 1 << 20
