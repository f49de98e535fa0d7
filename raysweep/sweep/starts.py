"""The runs that can be trained now, those that wait for the checkpoint of another, and those in vain.

A run that starts from another one needs the checkpoint of its source until it has one of its own to go on
from.  Until then the source keeps it too: where it has been lost, it is trained again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from raysweep.errors import CheckpointError
from raysweep.sweep.config import Sweep
from raysweep.sweep.ledger import Ledger, RunLedger, heads
from raysweep.sweep.missing import Missing, missing
from raysweep.sweep.records import FailureRecord
from raysweep.sweep.run import RunSpec
from raysweep.sweep.snapshot import Snapshot
from raysweep.sweep.survey import RunRecords, survey, survey_run
from raysweep.training import verify

_NOTHING = RunRecords()


@dataclass(frozen=True)
class Wait:
    """The reason why a run cannot be trained yet; with `vain` it will not be before its source is tried."""

    reason: str
    vain: bool = False


class Starts:
    """The waits of some runs, given what the ledger holds of them.

    With `retry`, failures count as not there.
    """

    def __init__(
        self, ledger: Ledger, runs: Iterable[RunSpec], held: Mapping[str, RunRecords], *, retry: bool = False
    ) -> None:
        self._ledger, self._retry = ledger, retry
        self._held = dict(held)
        self._runs = {spec.run_id: spec for spec in runs}
        self._waits: dict[str, Wait | None] = {}
        #: `heads` of the evaluations of runs, which share them; the runs keep these alive.
        self._heads: dict[tuple[int, ...], dict[str, str]] = {}
        #: Steps of runs whose checkpoints other runs still need, by run id.
        self.needed: dict[str, set[int]] = {}
        for spec in self._runs.values():
            if spec.source is not None and spec.source.own and self._begins(spec):
                self.needed.setdefault(spec.source.own, set()).add(spec.source.step or 0)

    def _records(self, run_id: str) -> RunRecords:
        if run_id not in self._held:
            self._held[run_id] = survey_run(self._ledger.open(run_id))
        return self._held[run_id]

    def _begins(self, spec: RunSpec) -> bool:
        """Return whether there is something to train, and no checkpoint of the run's own to go on from."""
        held = self._held.get(spec.run_id, _NOTHING)
        lacking = missing(spec, held).checkpoints
        return bool(lacking) and not any(step < lacking[0] for step in held.usable)

    def missing(self, spec: RunSpec, wanted: Mapping[str, str] | None = None) -> Missing:
        """Return what a run lacks, for itself and for those that start from it."""
        held = self._held.get(spec.run_id, _NOTHING)
        if wanted is None:
            key = tuple(map(id, spec.evaluations.values()))
            wanted = self._heads.get(key) or self._heads.setdefault(key, heads(spec.evaluations))
        return missing(spec, held, wanted, needed=self.needed.get(spec.run_id, ()))

    def wait(self, spec: RunSpec) -> Wait | None:
        """Return why a run cannot be trained yet; None if it can, or has nothing to train."""
        if spec.run_id not in self._waits:
            self._waits[spec.run_id] = self._wait(spec)
        return self._waits[spec.run_id]

    def _wait(self, spec: RunSpec) -> Wait | None:
        source = spec.source
        if source is None or not self._begins(spec) or source.there(self._ledger.open(spec.run_id)):
            return None
        if source.own is None:
            return Wait(
                f"its source {source.name} is not there any more; bring it back, or train it again", True
            )
        failure = self._records(source.own).failure
        if failure is not None and not self._retry:
            return Wait(f"its source {source.name} failed: {failure}", True)
        if source.own not in self._runs:
            return Wait(
                f"its source {source.name} is not there any more, and no run of the file makes it; "
                "bring it back, or its run into the file",
                True,
            )
        above = self.wait(self._runs[source.own])
        if above is not None and above.vain:
            return Wait(f"its source {source.name} cannot start: {above.reason}", True)
        return Wait(f"waits for {source.name}")

    def usable(self, spec: RunSpec) -> Collection[int]:
        """Return the steps of a run's checkpoints that have a folder."""
        return self._held.get(spec.run_id, _NOTHING).usable

    def cancelled(self, spec: RunSpec) -> bool:
        """Return whether a person has cancelled a run."""
        return self._held.get(spec.run_id, _NOTHING).cancelled

    def failure(self, spec: RunSpec) -> str | None:
        """Return the failure that keeps a run from being worked on, its own or its source's; None without."""
        own, wait = self._held.get(spec.run_id, _NOTHING).failure, self.wait(spec)
        if own is not None and not self._retry:
            return own
        return wait.reason if wait is not None and wait.vain else None


def starts(
    sweep: Sweep, *, verify: bool = True, retry: bool = False, snapshot: Snapshot | None = None
) -> Starts:
    """Return the waits of a sweep's runs, according to the ledger or to a `snapshot` of it."""
    ledger = sweep.ledger()
    held = survey(ledger, sweep.runs, verify=verify, snapshot=snapshot)
    return Starts(ledger, sweep.runs, held, retry=retry)


def unfinished(sweep: Sweep, waits: Starts | None = None) -> tuple[str, ...]:
    """Return the ids of the runs that have neither finished nor failed, nor wait for a source that failed."""
    found = waits or starts(sweep)
    return tuple(
        spec.run_id for spec in sweep.runs if found.failure(spec) is None and not found.missing(spec).finished
    )


def failures(sweep: Sweep, waits: Starts | None = None) -> dict[str, FailureRecord]:
    """Return the last failure of each run that cannot go on: its own, or that of its source."""
    ledger, waits = sweep.ledger(), waits or starts(sweep)
    found = dict[str, FailureRecord]()
    for spec in sweep.runs:
        message = waits.failure(spec)
        if message is not None:
            own = ledger.open(spec.run_id).failures()
            of_source = FailureRecord(message=message, error="SourceFailed", step=None, time=0.0)
            found[spec.run_id] = own[-1] if own else of_source
    return found


def check_source(run: RunLedger, spec: RunSpec) -> None:
    """Read the checkpoint of the same sweep that a run starts from; raise `CheckpointError` if it is damaged.

    It is then moved aside, so that its run trains to it again.
    """
    source = spec.source.ledger(run) if spec.source is not None and spec.source.own else None
    record = None if source is None or spec.source is None else source.checkpoint(spec.source.step or 0)
    if source is None or record is None:
        return
    try:
        verify(source.checkpoint_directory(record.step), record.files)
    except CheckpointError as error:
        source.quarantine(record, str(error))
        raise


def needed_of(sweep: Sweep, spec: RunSpec) -> Collection[int]:
    """Return the steps of a run whose checkpoints other runs of the sweep still need."""
    others = [other for other in sweep.runs if other.source is not None and other.source.own == spec.run_id]
    if not others:
        return ()
    ledger = sweep.ledger()
    return Starts(ledger, others, survey(ledger, others, verify=True)).needed.get(spec.run_id, ())
