"""Machine code is kept while no source changes that it was made from, and made again when one does."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raysweep
from raysweep.compiled import cache, kernel
from raysweep.compiled.cache import _Entries
from raysweep.compiled.simd import WIDE

KERNELS = """
from raysweep.compiled import kernel
from tiny.deep.inlined import double
from tiny.constants import SHIFT

@kernel
def answer(x):
    return double(x) + SHIFT
"""
INLINED = """
from raysweep.compiled import kernel
from ..factor import FACTOR

@kernel(inline="always")
def double(x):
    return FACTOR * x
"""
FILES = {
    "__init__.py": "",
    "kernels.py": KERNELS,
    "deep/__init__.py": "",
    "deep/inlined.py": INLINED,
    "factor.py": "FACTOR = 2\n",
    "constants.py": "SHIFT = 100\n",
    "other.py": "",
}
RUN = """
import json, tiny.other
from tiny.kernels import answer
found = answer(5), answer(5.0)
stats = answer.stats
counts = [sum(counter.values()) for counter in (stats.cache_hits, stats.cache_misses)]
print(json.dumps([*found, *counts, stats.cache_path]))
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path / "tiny"


def started(tiny: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process that calls the package's kernel with a whole number and with another."""
    path = os.pathsep.join([str(tiny.parent), str(Path(raysweep.__file__).parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def result(process: subprocess.Popen[str]) -> Any:
    """Return both answers, the kernel's hits and misses in the cache, and the folder of the cache."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out)


def test_an_edit_of_any_source_of_a_kernel_gives_new_code_and_no_other_edit_does(tiny: Path) -> None:
    folder = str(tiny / "__pycache__")
    # Of processes that need the same code at once, one compiles it.
    compiled = 0
    for process in [started(tiny), started(tiny), started(tiny)]:
        *answers, hits, misses, where = result(process)
        assert (answers, hits + misses, where) == ([110, 110.0], 2, folder)
        compiled += misses
    assert compiled == 2
    assert not list(Path(folder).glob("*.lock"))
    assert result(started(tiny)) == [110, 110.0, 2, 0, folder]
    (tiny / "other.py").write_text("OTHER = 1\n")
    assert result(started(tiny)) == [110, 110.0, 2, 0, folder]
    (tiny / "factor.py").write_text("FACTOR = 3\n")
    assert result(started(tiny)) == [115, 115.0, 0, 2, folder]
    (tiny / "constants.py").write_text("SHIFT = 200\n")
    assert result(started(tiny)) == [215, 215.0, 0, 2, folder]
    (tiny / "deep" / "inlined.py").write_text(INLINED.replace("FACTOR * x", "FACTOR * x + 1"))
    assert result(started(tiny)) == [216, 216.0, 0, 2, folder]
    # Entries of earlier sources are gone.
    assert len(list(Path(folder).glob("kernels.answer*.kernel"))) == 2


def test_without_a_place_beside_the_sources_code_lies_in_the_users_cache_folder(tiny: Path) -> None:
    # A file in the folder's place refuses it to every user, root too.
    (tiny / "__pycache__").write_text("")
    home = tiny.parent / "home"
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    first = result(started(tiny, **environment))
    again = result(started(tiny, **environment))
    assert first[:4] == [110, 110.0, 0, 2]
    assert again[:4] == [110, 110.0, 2, 0]
    assert Path(again[4]).is_relative_to(home)
    assert len(list(Path(again[4]).glob("kernels.answer*.kernel"))) == 2


def test_entries_of_two_writers_do_not_meet(tmp_path: Path) -> None:
    one, two = (_Entries(tmp_path, "m.f", "1" * 16, line=3) for _ in range(2))
    assert one.load("int") is None
    one.save("int", 1)
    two.save("float", 2)
    assert (one.load("float"), two.load("int")) == (2, 1)
    # Another function of that name in the module, and another kernel whose name begins the same.
    other, longer = _Entries(tmp_path, "m.f", "1" * 16, line=9), _Entries(tmp_path, "m.f2", "1" * 16, line=3)
    assert other.load("int") is longer.load("int") is None
    longer.save("int", 4)
    edited = _Entries(tmp_path, "m.f", "2" * 16, line=3)
    assert edited.load("int") is None
    edited.save("int", 3)
    assert [entries.load("int") for entries in (one, edited, longer)] == [None, 3, 4]
    edited.flush()
    assert [entries.load("int") for entries in (edited, longer)] == [None, 4]


def test_nobody_waits_for_ever_for_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PATIENCE", 0.2)
    entries = _Entries(tmp_path, "m.f", "1" * 16, line=3)
    lock = entries._path("int").with_suffix(".lock")
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert entries.load("int") is None  # the other makes it for ever
    assert entries.load("int") is None
    # To make it has failed here; the next attempt does not wait for itself.
    monkeypatch.setattr(cache, "_PATIENCE", 600.0)
    assert entries.load("int") is None
    entries.save("int", 1)
    assert entries.load("int") == 1
    assert not lock.exists()


def test_a_kernel_rounds_alike_whoever_calls_it_first() -> None:
    @kernel
    def rest(x, y):  # type: ignore[no-untyped-def]
        return x * x - y

    @kernel(fastmath={"contract"})
    def outer(x, y):  # type: ignore[no-untyped-def]
        return rest(x, y)

    x = 1.0 + 2.0**-30
    # Contracted, it would be 2^-60, what x * x was rounded by.
    assert (outer(x, x * x), rest(x, x * x)) == (0.0, 0.0)


def test_every_kernel_is_cached_here() -> None:
    package = Path(raysweep.__file__).parent
    found = [path.relative_to(package) for path in package.rglob("*.py") if "njit" in path.read_text()]
    assert found == [Path("compiled/cache.py")]


LOOP = """
import logging
logging.basicConfig()
from numba.core import config
from raysweep.compiled import cache
import numba

@numba.njit(fastmath=True)
def shifted(x):
    for i in range(len(x)):
        x[i] = 2 * x[i] + 1

import numpy
shifted(numpy.ones(64, dtype="f4"))
print(config.CPU_FEATURES, "zmm" in next(iter(shifted.inspect_asm().values())))
"""


def told(program: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.skipif(not WIDE, reason="this processor has no vectors of 64 bytes")
def test_loops_have_whole_vectors() -> None:
    found, errors = told(LOOP)
    assert found.endswith(",-prefer-256-bit True")
    assert errors == ""


@pytest.mark.skipif(not WIDE, reason="this processor has no vectors of 64 bytes")
def test_what_a_user_has_chosen_of_a_processor_stays() -> None:
    assert told(LOOP, NUMBA_CPU_FEATURES="+avx2")[0].startswith("+avx2 ")
    assert told(LOOP, NUMBA_CPU_NAME="generic")[0] == "False"


@pytest.mark.skipif(not WIDE, reason="this processor has no vectors of 64 bytes")
def test_a_process_that_has_used_numba_before_is_told() -> None:
    before = "import numba\nnumba.njit(lambda x: x)(1)\n"
    assert "numba was used in this process before raysweep's kernels" in told(before + LOOP)[1]
