"""A look at the machine before a launch: what is there, what would not work, and the remedy.

Nothing is started, and only an address that is asked about is contacted.  The storage is tried in a folder
that is removed again.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import urlsplit

from raysweep.errors import RaysweepError
from raysweep.files import remove_tree, rename, sync_directory, write_new
from raysweep.remote import RemotePath
from raysweep.sweep.provenance import PACKAGES, processor
from raysweep.sweep.storage import storage_root
from raysweep.sweep.tracking_uri import check_tracking_uri, is_server

#: Bytes of free disk, of free memory and of shared memory below which a launch is at risk.
_DISK, _MEMORY, _SHARED = 10 << 30, 2 << 30, 1 << 30
#: The share of a disk in use from which Ray takes no more objects on it.
_FULL = 0.95
#: Seconds for a small durable file above which records slow a sweep of short runs.
_SLOW = 0.05
_FEATURES = ("avx2", "avx512f", "avx512bf16", "amx-bf16", "neon", "sve")


@dataclass(frozen=True)
class Finding:
    """One thing that a launch needs: what was found, and where it is not ok, the consequence and remedy."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.state:<5} {self.name:<10} {self.found}" + (f": {self.remedy}" if self.remedy else "")


def examine(
    *, storage: Path | None = None, address: str | None = None, tracking_uri: str | None = None
) -> Iterator[Finding]:
    """Yield what a launch with these options would find; errors become findings that fail."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _versions),
        ("processor", _processor),
        ("memory", _memory),
        ("gpu", _gpus),
        ("kernels", _kernels),
        ("ray", lambda: _ray(address)),
        ("storage", lambda: _storage(storage)),
        ("mlflow", lambda: _mlflow(tracking_uri)),
    ]
    for name, look in looks:
        try:
            yield from look()
        except RaysweepError as error:
            yield Finding(name, "fail", str(error))
        except Exception as error:
            # A broken installation can raise anything, and the other findings are to be seen all the same.
            yield Finding(name, "fail", f"{type(error).__name__}: {error}", "repair the installation")


def _versions() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    state: Literal["ok", "fail"] = "ok" if sys.version_info >= (3, 11) else "fail"
    yield Finding("python", state, sys.version.split()[0], "" if state == "ok" else "install Python 3.11")
    found = {name: installed for name in PACKAGES if (installed := _installed(name)) is not None}
    yield Finding("packages", "ok", ", ".join(f"{name} {number}" for name, number in found.items()))
    for text in requires("raysweep") or () if "raysweep" in found else ():
        need = Requirement(text)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        there = _installed(need.name)
        if there is None or not need.specifier.contains(there, prereleases=True):
            wrong = f"{need.name} is {there or 'not installed'}, raysweep needs {need.specifier}"
            yield Finding("packages", "fail", wrong, f"pip install '{need.name}{need.specifier}'")


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> Iterator[Finding]:
    import torch
    from llvmlite import binding

    from raysweep.models.precision import multiplies_bfloat16

    features = binding.get_host_cpu_features()
    there = [name for name in _FEATURES if features.get(name)]
    bfloat16 = "fast" if multiplies_bfloat16(torch.device("cpu")) else "slow, so models train in float32"
    found = f"{processor()}; {', '.join(there) or 'no vector instructions known'}; bfloat16 {bfloat16}"
    if {"avx2", "neon", "sve"} & {*there}:
        yield Finding("processor", "ok", found)
    else:
        yield Finding("processor", "warn", found, "compiled kernels are slow here; take another machine")


def _memory() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _available() or whole
    state: Literal["ok", "warn"] = "ok" if free >= _MEMORY else "warn"
    remedy = "" if state == "ok" else "runs may be killed for memory; end other programs"
    found = f"{cores} cores, {_gib(whole)} memory, {_gib(free)} free"
    yield Finding("memory", state, found, remedy)
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).free < _SHARED:
        found = f"/dev/shm has {_gib(shutil.disk_usage(shared).free)} free"
        remedy = "Ray keeps objects on disk then, which is slow; in Docker add --shm-size=4g"
        yield Finding("memory", "warn", found, remedy)


def _available() -> int | None:
    """Return the bytes of memory that programs could take, None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)


def _gpus() -> Iterator[Finding]:
    import torch

    from raysweep.models import gpu

    count = torch.cuda.device_count()
    for k in range(count):
        facts = torch.cuda.get_device_properties(k)
        yield Finding("gpu", "ok", f"{facts.name}, {_gib(facts.total_memory)}")
    if count and (lack := gpu.missing()) is not None:
        yield Finding("gpu", "warn", lack, "install it; without it, encoders take longer to train")
    if not count and Path("/dev/nvidiactl").exists():
        remedy = f"torch {torch.__version__} does not see it; install torch for CUDA, or a newer driver"
        yield Finding("gpu", "warn", "there is a GPU", remedy)
    elif not count:
        yield Finding("gpu", "ok", "none; runs train on the processor")


def _kernels() -> Iterator[Finding]:
    import numba

    from raysweep.compiled import philox

    start = time.perf_counter()
    if numba.jit(lambda x: x + 1)(1) != 2:
        raise RuntimeError("a compiled function gives a wrong result")
    taken = time.perf_counter() - start
    folder = Path(philox.fill._cache.cache_path)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if os.access(there, os.W_OK):
        yield Finding("kernels", "ok", f"compiled in {taken:.1f} s, kept in {folder}")
    else:
        remedy = "kernels are compiled at each start; NUMBA_CACHE_DIR names another folder"
        yield Finding("kernels", "warn", f"{folder} cannot be written", remedy)


def _ray(address: str | None) -> Iterator[Finding]:
    if address is None:
        yield Finding("ray", "ok", "no address; a launch starts Ray on this machine")
        return
    from raysweep.engine.reach import check_cluster

    check_cluster(address)
    yield Finding("ray", "ok", f"{address} answers")


def _storage(storage: Path | None) -> Iterator[Finding]:
    root = storage_root(storage)
    if isinstance(root, RemotePath):
        yield from _object_store(root)
        return
    there = next(place for place in (root, *root.parents) if place.is_dir())
    try:
        with TemporaryDirectory(prefix=".tmp-doctor-", dir=there) as folder:
            yield from _tried(Path(folder), root)
    except OSError as error:
        remedy = "records need rename, fsync, locks and new files in it; --storage names another folder"
        yield Finding("storage", "fail", f"{root}: {error.strerror or error}", remedy)
    disk = shutil.disk_usage(there)
    found = f"{_gib(disk.free)} free of {_gib(disk.total)}"
    if disk.free < _DISK or disk.used > _FULL * disk.total:
        remedy = (
            "checkpoints may not fit, and Ray stops at 95 %; make room, or --storage names another folder"
        )
        yield Finding("disk", "warn", found, remedy)
    else:
        yield Finding("disk", "ok", found)


def _tried(folder: Path, root: Path) -> Iterator[Finding]:
    """Do what records need in a folder; raises `OSError` where that is impossible."""
    from raysweep.sweep.lock import SweepLock

    rounds, content = 8, os.urandom(4 << 20)
    start = time.perf_counter()
    for k in range(rounds):
        write_new(folder / f"new-{k}", b"record")
        rename(folder / f"new-{k}", folder / "record")
    each = (time.perf_counter() - start) / rounds
    try:
        write_new(folder / "record", b"again")
    except FileExistsError:
        pass
    else:
        raise OSError("a file that exists was made anew")
    start = time.perf_counter()
    write_new(folder / "large", content)
    sync_directory(folder)
    speed = len(content) / (time.perf_counter() - start)
    with SweepLock(folder / "locked"):
        pass
    found = f"{root}: a durable record in {1000 * each:.1f} ms, {speed / 1e6:.0f} MB/s"
    slow = "records slow down short runs; a local disk is faster" if each > _SLOW else ""
    yield Finding("storage", "warn" if slow else "ok", found, slow)


def _object_store(root: RemotePath) -> Iterator[Finding]:
    """Do what records need in an object store, and remove it again."""
    folder = root / f"doctor-{secrets.token_hex(4)}"
    try:
        start = time.perf_counter()
        (folder / "record").create(b"record")
        each = time.perf_counter() - start
        try:
            (folder / "record").create(b"again")
        except FileExistsError:
            pass
        else:
            raise OSError(errno.ENOTSUP, "an object that exists was created anew")
        if folder.names() != ["record"]:
            raise OSError(errno.EIO, "an object that was written is not listed")
        content = os.urandom(4 << 20)
        start = time.perf_counter()
        (folder / "large").write_bytes(content)
        speed = len(content) / (time.perf_counter() - start)
        if (folder / "large").read_bytes() != content:
            raise OSError(errno.EIO, "an object is read otherwise than it was written")
    except OSError as error:
        remedy = "check its place (bucket and region, or name node) and credentials; --storage names another"
        yield Finding("storage", "fail", f"{root}: {error.strerror or error}", remedy)
        return
    finally:
        remove_tree(folder)
    yield Finding("storage", "ok", f"{root}: a record in {1000 * each:.0f} ms, {speed / 1e6:.0f} MB/s")


def _mlflow(tracking_uri: str | None) -> Iterator[Finding]:
    uri = check_tracking_uri(tracking_uri)
    if uri is None:
        with TemporaryDirectory() as folder, sqlite3.connect(Path(folder) / "mlflow.db") as database:
            database.execute("create table runs (id text)")
        yield Finding("mlflow", "ok", f"SQLite {sqlite3.sqlite_version} in the sweep's folder")
    elif uri.startswith(("http://", "https://")):
        parts = urlsplit(uri)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=10).close()
        except OSError as error:
            remedy = "a launch goes on without it, and fills it when it is launched again"
            yield Finding("mlflow", "warn", f"{uri} does not answer ({error.strerror or error})", remedy)
            return
        yield Finding("mlflow", "ok", f"{uri} answers")
    else:
        what = "a server" if is_server(uri) else "a database"
        yield Finding("mlflow", "ok", f"{uri}: {what}, which is not contacted")


def _gib(size: float) -> str:
    """Return a number of bytes in GiB.

    >>> _gib(3 << 29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB"


def healthy(findings: Iterable[Finding]) -> bool:
    """Return whether all is there that a launch needs."""
    return all(finding.state != "fail" for finding in findings)
