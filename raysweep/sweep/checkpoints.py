"""Finds a run or a checkpoint of a launched sweep in the storage by RUN@STEP or SWEEP/RUN@STEP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raysweep.errors import ConfigError, DataError
from raysweep.sweep.config import Sweep
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.names import Named, one, split_step
from raysweep.sweep.run import RunSpec
from raysweep.sweep.stored import load_stored, stored_names
from raysweep.sweep.units import count


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
    """Return the checkpoint with a name: RUN@STEP, RUN for its last step, or either behind SWEEP/.

    RUN is any name that means one run alone (`raysweep.sweep.names`).  A run that several sweeps share is the
    same training in all of them; the first sweep with the checkpoint is taken.  Raises `ConfigError` naming
    the runs or steps that exist.
    """
    text, wanted = split_step(name)
    run_id, holders = _holders(storage, text)
    steps: set[int] = set()
    gone = []
    for sweep_name in holders:
        sweep = load_stored(storage / sweep_name)
        if not any(run.run_id == run_id for run in sweep.runs):
            gone.append(sweep.directory)
            continue
        check_trains(sweep.run(run_id))
        ledger = sweep.ledger().open(run_id)
        here = {record.step for record in ledger.checkpoints()}
        steps |= here
        if not here or (wanted is not None and wanted not in here):
            continue
        step = max(here) if wanted is None else wanted
        return FoundCheckpoint(sweep, sweep.run(run_id), step, ledger.checkpoint_directory(step))
    if not steps and gone:
        raise ConfigError(
            f"run {run_id} is no longer in the file of its sweep; `raysweep evaluate` takes its folder, "
            f"{Ledger(gone[0]).open(run_id).directory}"
        )
    if not steps:
        raise ConfigError(f"run {run_id} has no checkpoint that can be read; launch its sweep")
    listed = ", ".join(map(str, sorted(steps)))
    raise ConfigError(f"run {run_id} has no checkpoint of step {wanted}; it has steps {listed}")


def check_trains(spec: RunSpec) -> None:
    """Raise `ConfigError` for a run that has no model."""
    if not spec.trains:
        raise ConfigError(
            f"run {spec.run_id} has no model to export or evaluate: {spec.algorithm.kind} trains none"
        )


def find_runs(storage: Path, name: str) -> list[RunLedger]:
    """Return the ledgers of the run with a name, one for each sweep that has it; the step counts for nothing.

    Raises `ConfigError` as `find_checkpoint` does.
    """
    run_id, holders = _holders(storage, split_step(name)[0])
    return [Ledger(storage / sweep).open(run_id) for sweep in holders]


def _holders(storage: Path, text: str) -> tuple[str, list[str]]:
    """Return the id of the run that a name means, and the sweeps that have it, or that the name asks for."""
    names = stored_names(storage)
    known = stored_runs(storage, names, text)
    there = f"{count(len({run.run_id for run in known}), 'run')} in {count(len(names), 'sweep')}"
    run_id = one(
        text,
        known,
        lambda hint: (
            f"'{text}': no such run in {storage} ({there}){hint}; "
            "`raysweep status NAME` lists the runs of a sweep, --storage names another folder"
        ),
    )
    holders = [run.sweep for run in known if run.run_id == run_id]
    asked = [sweep for sweep in holders if text.startswith(f"{sweep}/")]
    return run_id, asked or holders


def stored_runs(storage: Path, sweeps: list[str], text: str) -> list[Named]:
    """Return the names of all runs of a storage.

    A run that is no longer in the file of its sweep, or whose sweep cannot be read, has its id alone.  Where
    the text is an id itself, no sweep is read.
    """
    known = [Named(run, sweep=sweep) for sweep in sweeps for run in Ledger(storage / sweep).run_ids()]
    if any(run.run_id == text for run in known):
        return known
    told = []
    for sweep in sweeps:
        try:
            told += [Named.of(spec, sweep) for spec in load_stored(storage / sweep).runs]
        except DataError:
            continue
    there = {(run.sweep, run.run_id) for run in told}
    return [*told, *(run for run in known if (run.sweep, run.run_id) not in there)]
