"""A sweep as a `ray.tune.Tuner`: the grid by default, any scheduler and search algorithm on request."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune.logger import JsonLoggerCallback
from ray.tune.result import DEFAULT_METRIC
from ray.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay
from ray.tune.search import Searcher
from ray.tune.search.sample import Domain

from raysweep.engine.choice import checked, shares
from raysweep.engine.cluster import check_storage, connect
from raysweep.engine.heed import Requests
from raysweep.engine.ready import Ready
from raysweep.engine.services import Services, start_services
from raysweep.engine.slots import Grid, Limited, Slots
from raysweep.engine.trial import resolve, run_trial
from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep import RunSpec, Sweep, SweepLock
from raysweep.sweep.config import check_sweep
from raysweep.sweep.expansion import unmeasured
from raysweep.sweep.made import MODES, Mode, record_made
from raysweep.sweep.provenance import provenance, save_launch
from raysweep.sweep.sentences import with_sentences
from raysweep.sweep.stored import save_sweep
from raysweep.tracking import Tracker

#: PB2 is a kind of the first.
_EXPLOITING = (PopulationBasedTraining, PopulationBasedTrainingReplay)


class Bookkeeping(tune.Callback):
    """Holds the lock of a sweep while a Tuner runs, records the launch and its runs, and feeds MLflow.

    `requests` heeds those of `raysweep cancel`, and the share of `slots` is left to other launches at the
    end.  `scheduler` is the name of what may stop a run, `metric` and `mode` are what the Tuner goes by.
    """

    def __init__(
        self,
        tracker: Tracker,
        sweep: Sweep,
        requests: Requests,
        slots: Slots,
        *,
        scheduler: str = "",
        metric: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        self._tracker = tracker
        self._sweep = sweep
        self._requests = requests
        self._slots = slots
        self._of: dict[str, Any] = {"by": scheduler or "Tune", "metric": metric, "mode": mode}
        self._lock: SweepLock | None = None

    def setup(self, *_: Any, **__: Any) -> None:
        self._lock = SweepLock(self._sweep.directory).acquire()
        self._requests.begin(self._lock)
        save_sweep(self._sweep)
        save_launch(self._sweep.directory, with_sentences(provenance(), self._sweep))
        self._tracker.start()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record the run that a trial makes, so that status, export and report show it."""
        self._record(trial)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Record where the run of a trial has come to its end."""
        # What a person has stopped is to go on.
        self._record(trial, None if self._requests.heard else (trial.last_result or {}).get("step"))

    def _record(self, trial: Any, step: int | None = None) -> None:
        if set(trial.config) != {"run"}:
            record_made(self._sweep.directory, resolve(self._sweep, trial.config), step=step, **self._of)

    def on_experiment_end(self, trials: list[Any], **_: Any) -> None:
        try:
            self._tracker.close()
        finally:
            self._requests.end()
            self._slots.close()
            if self._lock is not None:
                self._lock.release()


def _check_space(sweep: Sweep, space: Mapping[str, Any]) -> RunSpec:
    """Resolve one sample of the space, so that a wrong path or value is reported before anything starts.

    Returns the run of that sample.
    """
    grids = {key: value["grid_search"] for key, value in space.items() if _is_grid(value)}
    base = {
        key: value.sample() if isinstance(value, Domain) else value
        for key, value in space.items()
        if key not in grids
    }
    base |= {key: values[0] for key, values in grids.items() if values}
    first = resolve(sweep, base)
    for key, values in grids.items():
        if not values:
            raise ConfigError(f"param_space: '{key}' has an empty grid; give it at least one value")
        if key != "run":
            for value in values[1:]:
                resolve(sweep, {**base, key: value})
    return first


def _check_metrics(
    sweep: Sweep, runs: Sequence[RunSpec], metrics: Mapping[str, str | None], mode: str | None
) -> None:
    """Refuse a metric that these runs do not measure, as `search.metric` is refused, and an unknown mode.

    `metrics` are by the argument that names them.
    """
    problems = []
    for argument, metric in metrics.items():
        if metric is None or metric == DEFAULT_METRIC:
            continue
        if (message := unmeasured(metric, runs, sweep.languages)) is not None:
            problems.append(f"{argument}: {message}")
    if mode not in (None, *MODES):
        problems.append(f"mode: '{mode}' is not one of {', '.join(MODES)}{suggest(str(mode), MODES)}")
    if problems:
        raise ConfigError("\n".join(problems))


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"grid_search"}


def build(
    sweep: Sweep,
    shared: Services,
    *,
    slots: Slots,
    strict: bool,
    runs: Sequence[str] | None = None,
    scheduler: Any = None,
    search_alg: Any = None,
    param_space: Mapping[str, Any] | None = None,
    num_samples: int = 1,
    callbacks: Sequence[Any] = (),
    stop: tune.Stopper | None = None,
    metric: str | None = None,
    mode: str | None = None,
) -> tune.Tuner:
    """Return the Tuner over `runs` (run ids; all of the sweep by default) or over `param_space`.

    A `search_alg` that is a `Ready` suggests the runs itself.  Trials begin as `slots` allow.
    """
    space: dict[str, Any]
    reuse = scheduler is None and (search_alg is None or isinstance(search_alg, Ready))
    ids = list(runs) if runs is not None else [r.run_id for r in sweep.runs]
    own = [sweep.run(run_id).source for run_id in ids] if param_space is None else []
    if isinstance(search_alg, Ready):
        space = {}
    elif search_alg is None and any(source is not None and source.own in ids for source in own):
        space, search_alg, num_samples = {}, Ready(sweep, ids, shared.board), len(ids)
    elif param_space is None:
        space = {"run": tune.grid_search(ids)}
    else:
        space = dict(param_space)
    most: int | None = None
    if search_alg is None:
        grids = math.prod(len(value["grid_search"]) for value in space.values() if _is_grid(value))
        slots.expect(num_samples * grids)
        search_alg = Grid(slots)
    elif isinstance(search_alg, Searcher):
        slots.expect(num_samples)
        search_alg = Limited(search_alg, slots)
    else:
        # Tune makes it of a name, or it decides on its own.
        most = slots.now
    # A trial that takes no CPU leaves all CPUs to the workers.  Tune refuses an empty bundle, so the trial
    # takes one byte of memory.
    trainable = tune.with_resources(
        tune.with_parameters(run_trial, sweep=sweep, services=shared, strict=strict), {"CPU": 0, "memory": 1}
    )
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(
            scheduler=scheduler,
            search_alg=search_alg,
            num_samples=num_samples,
            max_concurrent_trials=most,
            metric=metric,
            mode=mode,
            # If a scheduler stops a trial, its actor must end, and the training with it.
            reuse_actors=reuse,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{uuid.uuid4().hex[:8]}",
            storage_path=str(shared.scratch),
            stop=stop,
            failure_config=tune.FailureConfig(max_failures=3),
            callbacks=[slots, *callbacks],
            verbose=0,
        ),
    )


def tuner(
    sweep: Sweep,
    *,
    scheduler: Any = None,
    search_alg: Any = None,
    param_space: Mapping[str, Any] | None = None,
    num_samples: int = 1,
    metric: str | None = None,
    mode: Mode | None = None,
    callbacks: Sequence[Any] = (),
    address: str | None = None,
) -> tune.Tuner:
    """Return a real `ray.tune.Tuner` over a sweep; call `.fit()` on it.

    Every milestone is one report to Tune: `step` (the training step, for a scheduler's `time_attr`),
    `run_id`, and every metric of the evaluations (`excess_loss`, `trace`, `probe/A`, ...).  In the ResultGrid
    it is a row of the `metrics_dataframe` of its result.  `raysweep status`, `export` and `report` show the
    runs beside those of the file.  A `search` in the sweep file does the same from the command line, and a
    killed one goes on.

    `param_space` maps dotted paths of the sweep file to values, `tune.grid_search` or search domains
    (`{"algorithm.lr": tune.loguniform(1e-4, 1e-2)}`), which replace those of the sweep's base.  The default
    is the sweep's own grid.  Runs that are done already are not trained again.

    Connects to Ray (as `raysweep.launch` does) if the caller has not, and leaves it connected; call
    `ray.shutdown()` at the end.  `fit` holds the sweep's lock, as a launch does.  `raysweep cancel` ends it:
    workers write a checkpoint, `fit` returns what there is, and a Tuner over the same runs goes on.

    Training is nested unless `resources.engine` is `lanes`.

    Raises `ConfigError` if the space does not fit the sweep, for a metric that it does not measure, for lanes
    with a scheduler or a search algorithm, and for population based training: it changes the settings of a
    run on the way, and a run of a sweep has one configuration from start to end.
    """
    check_sweep(sweep)
    if isinstance(scheduler, _EXPLOITING):
        raise ConfigError(
            f"scheduler: {type(scheduler).__name__} changes the settings of a run on the way, and a run of a "
            "sweep has one configuration from start to end; use ASHAScheduler or a search algorithm"
        )
    engine = checked(sweep.resources)
    if engine == "lanes" and (scheduler is not None or search_alg is not None):
        raise ConfigError(
            "resources.engine: a scheduler may stop a trial at any time, and then the training must end with "
            "the trial's process, so lanes are not for schedulers or search algorithms; use auto or nested"
        )
    runs = sweep.runs if param_space is None else (_check_space(sweep, param_space),)
    # Tune lets schedulers and search algorithms have a metric of their own.
    given = {"scheduler.metric": scheduler, "search_alg.metric": search_alg}
    own = {argument: getattr(by, "metric", None) for argument, by in given.items()}
    _check_metrics(sweep, runs, {"metric": metric, **own}, mode)
    sweep.prepare()
    cluster = connect(address)
    check_storage(sweep.directory)
    shared = shares(sweep.resources, engine, embedded=cluster.embedded)
    slots = Slots(sweep.resources, cluster, spare=scheduler is not None, shared=shared)
    services = start_services(sweep, engine, shared)
    slots.join(services.board)
    slots.close()  # until `fit` begins
    requests = Requests(sweep.directory, services.board)
    return build(
        sweep,
        services,
        slots=slots,
        strict=True,
        scheduler=scheduler,
        search_alg=search_alg,
        param_space=param_space,
        num_samples=num_samples,
        callbacks=[
            Bookkeeping(
                Tracker(sweep, commit=provenance()["git_commit"]),
                sweep,
                requests,
                slots,
                scheduler="" if scheduler is None else type(scheduler).__name__,
                metric=metric,
                mode=mode,
            ),
            # The tables of a ResultGrid are read from its files.
            JsonLoggerCallback(),
            *callbacks,
        ],
        stop=requests,
        metric=metric,
        mode=mode,
    )
