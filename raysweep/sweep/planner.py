"""The making of a plan, by comparing the runs of a sweep with the ledger.

It starts nothing and writes nothing, except that a damaged record is moved to quarantine, as by every reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from raysweep.sweep.changes import Changes, Settings
from raysweep.sweep.config import Sweep, check_sweep
from raysweep.sweep.estimate import Cost, History
from raysweep.sweep.learnt import of_storage
from raysweep.sweep.ledger import heads
from raysweep.sweep.missing import Missing
from raysweep.sweep.parameters import parameters
from raysweep.sweep.plan import TO_DO, Item, Plan, RunPlan, State
from raysweep.sweep.resources import Resources
from raysweep.sweep.room import absent, short_disk, short_memory
from raysweep.sweep.run import RunSpec
from raysweep.sweep.starts import Starts
from raysweep.sweep.stored import Launched
from raysweep.sweep.survey import RunRecords, stored_lengths, survey
from raysweep.sweep.timing import measure

_NOTHING = RunRecords()


def make_plan(
    sweep: Sweep,
    *,
    retry_failed: bool = False,
    verify: bool = True,
    timed: bool = False,
    step_seconds: Mapping[str, float] | None = None,
    concurrency: int | None = None,
    launched: Launched | None = None,
) -> Plan:
    """Compare the runs with the ledger: what is done, what is missing and why, with time and storage.

    With `verify`, every record is read and must be whole; otherwise file names suffice.  Times come from
    the ledger.  With `timed`, a few training steps are timed here for every model without a record, and
    the plan is for this machine until `Plan.at` names the number of runs at once; `step_seconds` gives
    such times by run id instead.  `concurrency` is the number of runs at once, if it is known.  `launched`
    is what the launch before asked for, where a caller has written its own over it.

    Raises `IdentityError` if a run's folder belongs to another configuration, and `ConfigError` for a file in
    place of a sweep.
    """
    check_sweep(sweep)
    ledger = sweep.ledger()
    records = survey(ledger, sweep.runs, verify=verify)
    waits = Starts(ledger, sweep.runs, records, retry=retry_failed)
    if timed:
        step_seconds = measure(sweep, (s for s in sweep.runs if _untimed(s, records, waits, retry_failed)))
    learnt = of_storage(sweep.directory)
    history = History(sweep, records, step_seconds or {}, learnt)
    keyed: dict[tuple[str, ...], dict[str, str]] = {}
    runs = []
    fixed = any(spec.trains and spec.algorithm.depends_on_steps for spec in sweep.runs)
    present = ledger.run_ids() if fixed else []
    changes, settings = Changes(ledger, sweep), Settings(ledger)
    launched = launched or Launched(sweep.directory)
    kept = {run_id for run_id, held in records.items() if held.recorded or held.evaluations}
    for spec in sweep.runs:
        # Runs of a sweep share their evaluations, so their identities are computed once.
        key = tuple(spec.evaluations)
        if key not in keyed:
            keyed[key] = heads(spec.evaluations)
        held = records.get(spec.run_id, _NOTHING)
        run = _plan_run(spec, held, keyed[key], history, waits, settings, launched, retry_failed)
        if run.state == "new" and spec.run_id not in kept and (change := changes.to(spec, kept)):
            run = replace(run, reason=change)
        if run.state == "new" and spec.algorithm.depends_on_steps:
            lengths = stored_lengths(ledger, spec, (r for r in present if r != spec.run_id))
            if lengths:
                run = replace(run, reason=f"{run.reason}; {_not_extended(lengths)}")
        runs.append(run)
    to_do = [run for run in runs if run.state in TO_DO]
    space = _total(run.cost.bytes for run in to_do)
    assumed = timed and concurrency is None
    slots = _here(sweep.resources) if assumed else concurrency
    here = _of_machine(sweep.resources, to_do, history, slots) if assumed else ()
    return Plan(
        name=sweep.name,
        runs=tuple(runs),
        remarks=(*sweep.notes, *_of_search(sweep, to_do), *short_disk(space, sweep.directory)),
        here=tuple(here),
        resources=sweep.resources,
        trainings_saved=max(0, sweep.points - len(sweep.runs)),
        work_seconds=_total(run.cost.seconds for run in to_do),
        new_bytes=None if space is None else round(space),
        parameters=parameters(sweep),
        to_choose=sweep.to_choose,
        strays=changes.strays(),
        elsewhere=changes.elsewhere,
        concurrency=slots,
        assumed=assumed,
        start=learnt.start,
        load=_load() if timed else None,
    )


def _of_machine(
    resources: Resources, to_do: Sequence[RunPlan], history: History, slots: int | None
) -> Iterator[str]:
    """Yield what this machine has no room for."""
    if to_do:
        yield from absent(resources)
    training = [(run.spec.model.label, history.training_bytes(run.spec)) for run in to_do if run.train_steps]
    at_once = resources.max_concurrent
    yield from short_memory(training, resources, slots=slots or (at_once if at_once != "auto" else 1))


def _load() -> float | None:
    """Return how many programs wanted a CPU of this machine; None where each has one, or nobody knows."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    # This process is one of them.
    return load if load > (os.cpu_count() or 1) + 1 else None


def _of_search(sweep: Sweep, to_do: Sequence[RunPlan]) -> Iterator[str]:
    """Yield what a search makes of the estimates."""
    if sweep.to_choose:
        known = len(sweep.samples)
        yield f"time and storage are for the samples that are known, {known} of {known + sweep.to_choose}"
    if to_do and sweep.search is not None and sweep.search.scheduler is not None:
        yield "asha stops samples early, so time and storage are the most that it may take"


def _here(resources: Resources) -> int | None:
    """Return how many runs this machine trains at once; None if the sweep says it, or trains on GPUs.

    The machine that has the GPUs is not known here.
    """
    if resources.max_concurrent != "auto" or resources.per_worker.get("GPU", 0) > 0:
        return None
    cpus = resources.per_worker.get("CPU", 0) * resources.workers
    return max(1, int((os.cpu_count() or 1) / cpus)) if cpus > 0 else None


def _untimed(spec: RunSpec, records: Mapping[str, RunRecords], waits: Starts, retry_failed: bool) -> bool:
    """Return whether a run is to train and no record says how long its steps take."""
    held = records.get(spec.run_id, _NOTHING)
    if held.step_seconds is not None or (held.failure is not None and not retry_failed):
        return False
    return waits.missing(spec).train_steps > 0


def _plan_run(
    spec: RunSpec,
    held: RunRecords,
    wanted: Mapping[str, str],
    history: History,
    waits: Starts,
    settings: Settings,
    launched: Launched,
    retry: bool,
) -> RunPlan:
    lacks = waits.missing(spec, wanted)
    wait, why = waits.wait(spec), waits.failure(spec)
    if held.failure is not None and not retry:
        why = f"failed: {why}; --retry-failed runs it again"
    failed = why is not None and not lacks.finished
    if lacks.finished:
        items = _all_done(spec.milestones, spec.trains, tuple(wanted))
    else:
        items = tuple(_items(spec, held, wanted, lacks, settings, why if failed else None))
    status: State
    if lacks.finished:
        status, reason = "done", "" if spec.stopped is None else str(spec.stopped)
    elif failed:
        status, reason = "failed", why or ""
    elif wait is not None:
        status, reason = "blocked", wait.reason
    elif not lacks.checkpoints:
        status, reason = "evaluate", _evaluate_reason(items)
    else:
        status, reason = "new", _reason_of(items, lacks.checkpoints[0])
        if lacks.resume_step:
            status, reason = "resume", f"from step {lacks.resume_step}: {_asked(spec, lacks, held, launched)}"
    idle = status in ("done", "failed")
    cost = Cost(step=history.step(spec)) if idle else history.cost(spec, lacks)
    return RunPlan(spec, status, reason, items, lacks, cost)


@lru_cache(maxsize=64)
def _all_done(milestones: Sequence[int], trains: bool, kinds: Sequence[str]) -> tuple[Item, ...]:
    """Return the items of runs that lack nothing; thousands of runs share them."""
    wanted = [None, *kinds] if trains else kinds
    return tuple(Item(step, kind, "done") for step in milestones for kind in wanted)


def _items(
    spec: RunSpec,
    held: RunRecords,
    wanted: Iterable[str],
    lacks: Missing,
    settings: Settings,
    failed: str | None,
) -> Iterator[Item]:
    """Yield the items of a run; `failed` is why nobody works on it."""
    absent = set(lacks.evaluations)
    before = {(step, kind): head for step, kind, head in sorted(held.evaluations)} if absent else {}
    for step in spec.milestones:
        if spec.trains:
            yield _checkpoint_item(step, lacks, held, failed)
        for kind in wanted:
            if (step, kind) not in absent:
                yield Item(step, kind, "done")
            elif failed is not None:
                yield Item(step, kind, "failed", failed)
            else:
                former = before.get((step, kind))
                reason = settings.change(spec, step, kind, former) if former else "not measured yet"
                yield Item(step, kind, "new", reason)


def _asked(spec: RunSpec, lacks: Missing, held: RunRecords, launched: Launched) -> str:
    """Return why training goes on: what is gone, what was cut off, or what the file asks for by now."""
    first, last = lacks.checkpoints[0], lacks.train_to
    if first in held.recorded:
        return f"the checkpoint of step {first} is missing"
    before = launched.milestones(spec)
    if last in before or (not before and lacks.resume_step not in spec.milestones):
        return f"training ended there, before {last:,}"
    milestone = "" if last == spec.milestones[-1] else "a milestone at "
    return f"the file asks for {milestone}{last:,}"


def _checkpoint_item(step: int, lacks: Missing, held: RunRecords, failed: str | None) -> Item:
    if step not in lacks.checkpoints:
        return Item(step, None, "done")
    if failed is not None:
        return Item(step, None, "failed", failed)
    reason = "checkpoint missing" if step in held.recorded else "not trained yet"
    if lacks.resume_step:
        return Item(step, None, "resume", f"{reason}; from step {lacks.resume_step}")
    return Item(step, None, "new", reason)


def _reason_of(items: Iterable[Item], step: int) -> str:
    return next(i.reason for i in items if i.step == step and i.evaluation is None).partition("; from")[0]


def _not_extended(lengths: Iterable[int]) -> str:
    return (
        f"the stored run of {', '.join(map(str, lengths))} steps cannot be extended or cut, "
        "because the learning rate depends on the number of steps"
    )


def _evaluate_reason(items: Iterable[Item]) -> str:
    """Return which evaluations are missing and why, grouped by kind."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for item in items:
        if item.evaluation is not None and item.state != "done":
            grouped.setdefault((item.evaluation, item.reason), []).append(item.step)
    return "; ".join(
        f"{kind}: {reason}, at {'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
        for (kind, reason), steps in grouped.items()
    )


def _total(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if a part is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
