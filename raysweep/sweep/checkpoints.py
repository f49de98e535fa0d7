"""Finds a checkpoint of a launched sweep in the storage by RUN@STEP."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep.config import Sweep
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.run import RunSpec
from raysweep.sweep.stored import load_stored, stored_names


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint with its sweep and run; `directory` is the checkpoint's own folder."""

    sweep: Sweep
    run: RunSpec
    step: int
    directory: Path

    @property
    def name(self) -> str:
        """RUN@STEP in full."""
        return f"{self.run.run_id}@{self.step}"


def find_checkpoint(storage: Path, name: str) -> FoundCheckpoint:
    """Return the checkpoint with a name: RUN@STEP, or RUN for its last step.

    RUN is a run's id or a pattern (`*` and `?`) that only one run matches.  A run that several sweeps share
    is the same training in all of them; the first sweep with the checkpoint is taken.  Raises `ConfigError`
    naming the runs or steps that exist.
    """
    pattern, at, text = name.rpartition("@") if "@" in name else (name, "", "")
    if at and not (text.isascii() and text.isdigit()):
        raise ConfigError(f"'{name}': '{text}' is not a step; write RUN@STEP, e.g. {pattern or 'RUN'}@1000")
    sweeps = {sweep: Ledger(storage / sweep).run_ids() for sweep in stored_names(storage)}
    everywhere = sorted({run for runs in sweeps.values() for run in runs})
    found = [run for run in everywhere if fnmatch.fnmatchcase(run, pattern)]
    if not found:
        hint = suggest(pattern, everywhere)
        raise ConfigError(
            f"'{pattern}': no such run in {storage} ({len(everywhere)} runs in {len(sweeps)} sweeps){hint}; "
            "`raysweep status NAME` lists the runs of a sweep, --storage names another folder"
        )
    if len(found) > 1:
        listed = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise ConfigError(f"'{pattern}': matches {len(found)} runs ({listed}); name one of them")
    holders = [storage / sweep for sweep, runs in sweeps.items() if found[0] in runs]
    steps: set[int] = set()
    for holder in holders:
        sweep = load_stored(holder)
        if not any(run.run_id == found[0] for run in sweep.runs):
            continue  # its file has changed since
        ledger = sweep.ledger().open(found[0])
        here = {record.step for record in ledger.checkpoints()}
        steps |= here
        if not here or (at and int(text) not in here):
            continue
        step = int(text) if at else max(here)
        return FoundCheckpoint(sweep, sweep.run(found[0]), step, ledger.checkpoint_directory(step))
    if not steps:
        raise ConfigError(f"run {found[0]} has no checkpoint that can be read; launch its sweep")
    listed = ", ".join(map(str, sorted(steps)))
    raise ConfigError(f"run {found[0]} has no checkpoint of step {text}; it has steps {listed}")
