"""The stamps of records: what the file system tells of each file without reading it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from raysweep.files import names
from raysweep.remote import RemotePath
from raysweep.sweep.ledger import RECORDS, Ledger, RunLedger
from raysweep.sweep.record_heads import IDENTITY
from raysweep.sweep.records import parse_name

#: Size in bytes, and times of change of content and of inode in nanoseconds, of a file.
Stamp = tuple[int, int, int]


def stamps(ledger: Ledger, run_ids: Iterable[str]) -> dict[str, dict[str, Stamp]]:
    """Return the stamps of the identity and of the records of runs, by run id and file name."""
    of_run = _remote_stamps if isinstance(ledger.directory, RemotePath) else _local_stamps
    return {run_id: of_run(ledger, run_id) for run_id in run_ids}


def record_paths(run: RunLedger, file_names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run's identity and of its records, each after its name."""
    for name in file_names:
        yield name, run.identity_path if name == IDENTITY else run.record_path(name)


def _remote_stamps(ledger: Ledger, run_id: str) -> dict[str, Stamp]:
    """Return the stamps of a run's identity and of its records in an object store, by file name."""
    run, found = ledger.open(run_id), dict[str, Stamp]()
    listed_names = (name for name in names(run.records_directory) if parse_name(name) is not None)
    for name, path in record_paths(run, (IDENTITY, *listed_names)):
        with suppress(FileNotFoundError):
            status = path.stat()
            # The place of an object is a digest that changes with each write.
            found[name] = status.st_size, int(status.st_mtime * 1e9), status.st_ino
    return found


def _local_stamps(ledger: Ledger, run_id: str) -> dict[str, Stamp]:
    """Return the stamps of a run's identity and of its records on a disk, by file name."""
    # Paths as objects would take longer than the system's calls.
    folder, found = f"{ledger.runs_directory}/{run_id}", dict[str, Stamp]()
    try:
        status = os.stat(f"{folder}/{IDENTITY}")
        found[IDENTITY] = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    except (FileNotFoundError, NotADirectoryError):
        pass
    try:
        opened = os.open(f"{folder}/{RECORDS}", os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return found
    try:
        # From an open folder, the system finds each file without walking its whole path.
        with os.scandir(opened) as entries:
            for entry in entries:
                name = entry.name
                if parse_name(name) is not None:
                    try:
                        status = entry.stat()
                    except FileNotFoundError:  # gone since the folder was listed
                        continue
                    found[name] = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    finally:
        os.close(opened)
    return found
