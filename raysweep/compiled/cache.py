"""The decorator of all kernels, and its cache of machine code.

numba compiles into a kernel the helpers, intrinsics and constants that it takes from other modules, but its
own cache looks only at the kernel's file, so an edit elsewhere leaves stale machine code.  Here the entries
of a kernel carry a stamp over the sources of its module and of all modules that this one imports, directly or
not, from raysweep or from its own package.  Imports within functions, `if` and `try` do not count: a kernel
takes no code from there.

Each entry is one file, written whole under a name of its own, so that any number of processes may compile at
once.  (numba's index, written by two processes at a time, can name the machine code of another signature.)
Of processes that need the same entry, one compiles it, and the others wait: the first launch after an
installation would otherwise compile each kernel in each of its workers.
Entries lie where numba would put them: beside the sources, or in the user's cache folder where the
installation is read-only, or in `NUMBA_CACHE_DIR`.

This module relies on these parts of numba (0.62 to 0.68) that are not public: `Dispatcher._cache`; the class
`FunctionCache`, which chooses the folder (`cache_path`), knows numba's own stamp (`_impl.locator`), and calls
`load(key)`, `save(key, data)` and `flush()` of its `_cache_file`; `numba.core.serialize.dumps`;
`numba.core.codegen.get_host_cpu_features`; and `numba.core.config`, whose `CPU_FEATURES` are read once, when
`cpu_target` makes its context for the first function.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import logging
import os
import pickle
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba.core import config as numba_config
from numba.core.caching import FunctionCache
from numba.core.codegen import get_host_cpu_features
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from raysweep.compiled import about_to_compile
from raysweep.compiled.simd import WIDE
from raysweep.files import write_atomic

log = logging.getLogger(__name__)

#: Seconds that a process waits at most for machine code that another one makes.
_PATIENCE = 60.0

#: What a kernel's options leave out.  numba itself would take all but the first two from the kernel in whose
#: compilation this one is met for the first time, so that the last place of its results would depend on the
#: order of calls.  Nobody needs the function for callers in C that it compiles as well.
_OWN = {
    "nogil": True,
    "no_cfunc_wrapper": True,
    "fastmath": False,
    "error_model": "python",
    "forceinline": False,
}

#: numba's settings; it makes these names from the environment.
config: Any = numba_config

#: Locks of the entries that this process makes, by file.
_HELD: dict[Path, int] = {}


def _prefer_whole_vectors() -> None:
    """Let the loops that numba compiles in this process use vectors of 64 bytes where the processor has them.

    LLVM takes half of that on Intel's processors, since the first of them ran slower with whole ones.  That
    slows loops of arithmetic, and code that is written in vectors (`raysweep.compiled.simd`) has whole ones
    in any case.  What a user has chosen stays.
    """
    if WIDE and config.CPU_FEATURES is None and config.CPU_NAME is None:
        config.CPU_FEATURES = f"{get_host_cpu_features()},-prefer-256-bit"
        if "_toplevel_target_context" in vars(cpu_target):
            log.warning(
                "numba was used in this process before raysweep's kernels; they may be slower here, and last "
                "digits may differ from those of other processes; import raysweep.compiled.cache first"
            )


_prefer_whole_vectors()


def kernel(function: Any = None, /, **options: Any) -> Any:
    """Compile a function at its first call, release Python's lock in it, and keep its machine code on disk.

    `options` are those of `numba.njit`.  Used as `@kernel` or as `@kernel(inline="always", ...)`.
    """
    if function is None:
        return lambda function: kernel(function, **options)
    compiled = numba.njit(**{**_OWN, **options})(function)
    if compiled is not function:  # as it is with NUMBA_DISABLE_JIT
        compiled._cache = _Cache(function)
    return compiled


@cache
def stamp(module: str) -> str:
    """Return a digest of the sources that the compiled code of a module depends on."""
    packages = {"raysweep", module.partition(".")[0]}
    found, ahead = {module}, [module]
    while ahead:
        for name in _source(ahead.pop())[1]:
            if name not in found and name.partition(".")[0] in packages:
                found.add(name)
                ahead.append(name)
    return hashlib.sha256(b"".join(_source(name)[0] for name in sorted(found))).hexdigest()


@cache
def _source(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the digest of a module's source and the modules that it imports.

    It is read once in a process, when the first kernel that depends on it is made: later edits do not belong
    to the code that this process runs.
    """
    path = _file(module)
    content = path.read_bytes() if path else b""
    names = tuple(_imported(ast.parse(content), module, path is not None and path.name == "__init__.py"))
    return hashlib.sha256(module.encode() + b"\0" + content).digest(), names


def _imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[str]:
    """Yield the modules that the top level of a module imports."""
    package = module if is_package else module.rpartition(".")[0]
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                inner = f"{name}.{alias.name}"
                yield inner if _file(inner) else name


def _file(module: str) -> Path | None:
    """Return the source file of a module whose package is loaded, None where there is none."""
    head, *rest = module.split(".")
    package = sys.modules.get(head)
    for folder in getattr(package, "__path__", ()):
        base = Path(folder, *rest)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return path
    alone = getattr(package, "__file__", None)
    return Path(alone) if alone and alone.endswith(".py") and not rest else None


class _Cache(FunctionCache):
    """The cache of one kernel: numba's, with other files and another stamp."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__(function)
        module = function.__module__
        name = "".join(c for c in f"{module.rpartition('.')[2]}.{function.__qualname__}" if c not in "<>")
        # numba's own stamp covers functions that stand in no file, such as those of a notebook.
        own = self._impl.locator.get_source_stamp()
        self._cache_file = _Entries(  # type: ignore[assignment]
            Path(self.cache_path),
            f"{name}.{sys.implementation.cache_tag}",
            _short(repr((stamp(module), own, numba.__version__, _OWN))),
            function.__code__.co_firstlineno,
        )


class _Entries:
    """The files of one kernel, `<name>-<stamp>-<key>.kernel`: one for each signature and processor.

    `line` distinguishes functions of the same name in one module.
    """

    def __init__(self, folder: Path, name: str, stamp: str, line: int) -> None:
        self._folder, self._name, self._stamp, self._line = folder, name, stamp, line

    def load(self, key: Any) -> Any:
        """Return the data of a key, None where there are none: then this process is to make and save them.

        While another process makes them, this waits for it, at most `_PATIENCE` seconds.
        """
        data = self._read(key)
        if data is None and _take_turn(self._path(key)):
            data = self._read(key)
            if data is not None:
                _end_turn(self._path(key))
        if data is None:
            about_to_compile()
        return data

    def _read(self, key: Any) -> Any:
        try:
            content = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        kept, data = pickle.loads(content)  # noqa: S301 -- numba reads its own entries so
        return data if kept == (self._line, key) else None

    def save(self, key: Any, data: Any) -> None:
        """Keep the data of a key, and remove the kernel's entries of other sources."""
        write_atomic(self._path(key), dumps(((self._line, key), data)))
        _end_turn(self._path(key))
        for path in self._entries():
            if not path.name.startswith(f"{self._name}-{self._stamp}-"):
                path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Remove all entries of the kernel."""
        for path in self._entries():
            path.unlink(missing_ok=True)

    def _entries(self) -> Iterator[Path]:
        return self._folder.glob(f"{self._name}-*.kernel")

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}-{self._stamp}-{_short(repr((self._line, key)))}.kernel"


def _take_turn(path: Path) -> bool:
    """Return True once no other process makes an entry; False where that cannot be known or takes too long.

    This saves work; no result depends on it.
    """
    lock = path.with_suffix(".lock")
    if lock in _HELD:
        return False  # it was to be made here before, and that failed
    deadline = time.monotonic() + _PATIENCE
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            os.close(handle)
            return False
        except OSError:
            os.close(handle)
            return False
        _HELD[lock] = handle
        return True


def _end_turn(path: Path) -> None:
    lock = path.with_suffix(".lock")
    handle = _HELD.pop(lock, None)
    if handle is not None:
        # Who waits for the removed file goes on, too.
        lock.unlink(missing_ok=True)
        os.close(handle)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
