"""Writes views into MLflow: a sweep is an experiment's parent run, a run is a child run.

Calls are synchronous and may raise.

Writing is idempotent.  A run is found by its tag `raysweep.run_id`, never by name; a point that the store
already holds (same metric, step and timestamp) is not sent again, and a run with an unchanged view is not
read at all (tag `raysweep.digest`).  MLflow cannot alter a point or a param.  A run with records that
contradict written points, or that know nothing of them, is therefore deleted (MLflow keeps it in its bin) and
written anew, so the store never shows two values for one measurement.  The checkpoints of a run are logged
models of MLflow (`raysweep.tracking.models`).
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from raysweep.evaluation.metric import Kind
from raysweep.sweep.tracking_uri import is_server
from raysweep.tracking.charts import charts, charts_key
from raysweep.tracking.models import Checkpoints
from raysweep.tracking.sqlite import prepare, settle
from raysweep.tracking.view import OVER, Point, RunView, Status, SweepView

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_log = logging.getLogger("raysweep.tracking")

T = TypeVar("T")

PARENT = "mlflow.parentRunId"
RUN_ID = "raysweep.run_id"
SWEEP = "raysweep.sweep"
DIRECTORY = "raysweep.directory"
IDENTITY = "raysweep.identity"
DIGEST = "raysweep.digest"

# Limits of one log_batch call, of 1,000 things in all, and of one param and one tag (the smallest of the
# supported versions).
_METRICS, _PARAMS, _PARAM_LENGTH, _TAG_LENGTH = 900, 100, 500, 5000

#: MLflow's own tags for the name of a run and for a note on it.
_NAME, _NOTE = "mlflow.runName", "mlflow.note.content"

_SQLITE = "sqlite:///"
_OLDEST_FIRST = ["attributes.start_time ASC", "attributes.run_id ASC"]


def quiet() -> None:
    """Set the process up before MLflow is imported: no telemetry, no chatter, short timeouts.

    The writer retries, so a request should fail within seconds.  Values that the user has set in the
    environment stand.
    """
    no_telemetry()
    for name, value in {
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }.items():
        os.environ.setdefault(name, value)
    # Failures are raised to us and reported once by the writer; migrations would print a line per table.
    for name in ("alembic", "mlflow.store", "mlflow.tracking", "mlflow.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def no_telemetry() -> None:
    """Keep MLflow from telling its makers of its use; it decides when it is imported, by whomever."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


def import_mlflow(tracking_uri: str) -> None:
    """Import what a store at this URI needs, which takes seconds."""
    import mlflow

    if not is_server(tracking_uri):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


@dataclass
class _Written:
    """The known content of the store for one run."""

    mlflow_id: str
    digest: str | None
    status: str
    #: The tags of name and note.
    words: dict[str, str]
    #: The params; None while they have not been read back.
    params: dict[str, str] | None = None
    #: Names of stored metrics with points that have not been read back.
    unread: set[str] = field(default_factory=set)
    #: (metric, step) -> timestamp in ms, of the points written or read back by this process.
    points: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def metrics(self) -> set[str]:
        """The names of all stored metrics."""
        return self.unread | {key for key, _ in self.points}

    def forget(self) -> None:
        """Leave params and points to the store: of thousands of runs they would take the launch's memory."""
        self.unread = {sys.intern(key) for key in self.metrics}
        self.params, self.points = None, {}


class Store:
    """One sweep's part of a tracking store, connected on construction.

    `tracking_uri` is any MLflow URI; a `sqlite:///` one must be absolute and is created or migrated here.
    `artifact_location` is the place of a new experiment's artifacts (None: the server decides).  With
    `rebuild`, a damaged SQLite file is moved to the folder `quarantine` beside it and made anew, and one that
    was moved with its folder has its artifacts there; only a store whose whole content is in a ledger may be.
    Every method raises MLflow's errors if the store cannot be reached.
    """

    def __init__(
        self, sweep: SweepView, tracking_uri: str, artifact_location: str | None, *, rebuild: bool = False
    ) -> None:
        quiet()
        from mlflow import MlflowClient

        if tracking_uri.startswith(_SQLITE):
            path = Path(tracking_uri.removeprefix(_SQLITE))
            prepare(path, rebuild=rebuild)
            if rebuild and artifact_location is not None:
                settle(path, sweep.name, artifact_location)
        self.client: MlflowClient = MlflowClient(tracking_uri=tracking_uri)
        self.sweep = sweep
        #: Tags of the experiment.
        self._tags: dict[str, str] = {}
        self.experiment_id = self._experiment(artifact_location)
        self._runs: dict[str, _Written] = {}
        self._checkpoints = Checkpoints(self.client, self.experiment_id)
        self._shown: dict[str, Kind] = {}
        self.parent_id = self._parent()
        self._find_children()

    def _experiment(self, artifact_location: str | None) -> str:
        found = self.client.get_experiment_by_name(self.sweep.name)
        if found is None:
            created: str = self.client.create_experiment(self.sweep.name, artifact_location=artifact_location)
            return created
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        self._tags |= found.tags
        experiment_id: str = found.experiment_id
        return experiment_id

    def _search(self, condition: str) -> Iterator[Run]:
        token: str | None = None
        while True:
            page = self.client.search_runs(
                [self.experiment_id],
                filter_string=condition,
                max_results=1000,
                order_by=_OLDEST_FIRST,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def _parent(self) -> str:
        note = self.sweep.note[:_TAG_LENGTH]
        tags = {SWEEP: self.sweep.name, _NOTE: note}
        if self.sweep.git_commit:
            tags["mlflow.source.git.commit"] = self.sweep.git_commit
        if self.sweep.directory:
            tags[DIRECTORY] = self.sweep.directory
        found = next(self._search(_is_parent(self.sweep.name, self.sweep.directory)), None)
        if found is None:
            found = self.client.create_run(self.experiment_id, tags=tags, run_name=self.sweep.name)
        else:
            self.client.update_run(found.info.run_id, status="RUNNING")
            self._tag(found.info.run_id, {k: v for k, v in tags.items() if found.data.tags.get(k) != v})
        parent_id: str = found.info.run_id
        self.client.log_dict(parent_id, dict(self.sweep.config), "sweep.json")
        return parent_id

    def _find_children(self) -> None:
        for run in list(self._search(f"tags.`{PARENT}` = {_quoted(self.parent_id)}")):
            name = run.data.tags.get(RUN_ID)
            if name is None:
                continue
            if name in self._runs:
                # A request that was executed but not answered can leave a second run; the first stands.
                self.client.delete_run(run.info.run_id)
                continue
            self._runs[name] = _Written(
                mlflow_id=run.info.run_id,
                digest=run.data.tags.get(DIGEST),
                status=run.info.status,
                words={name: run.data.tags.get(name, "") for name in (_NAME, _NOTE)},
                unread={sys.intern(key) for key in run.data.metrics},
            )
            if run.info.status == "RUNNING":
                # This writer is the only one, so the process that ran it has died.
                self._terminate(self._runs[name], "KILLED", end_ms=None)

    def write(self, view: RunView) -> bool:
        """Bring the store up to date with `view`; return False if it was already."""
        digest = view.digest
        self._chart(view.shown)
        known = self._runs.get(view.run_id)
        if known is not None and known.digest == digest and known.status == view.status:
            return False
        params = {key: value[:_PARAM_LENGTH] for key, value in view.params.items()}
        if known is not None and self._contradicts(known, view, params):
            self._checkpoints.delete(known.mlflow_id)
            self.client.delete_run(known.mlflow_id)
            del self._runs[view.run_id]
            known = None
        if known is None:
            known = self._runs[view.run_id] = self._create(view)
        self._log(known, view, params)
        return True

    def _contradicts(self, known: _Written, view: RunView, params: Mapping[str, str]) -> bool:
        stored_params = self._params(known)
        if any(stored_params.get(key, value) != value for key, value in params.items()):
            return True
        if known.metrics - {p.key for p in view.points}:
            return True
        stored = self._stored(known, view.points)
        return any(stored.get((p.key, p.step), p.time_ms) != p.time_ms for p in view.points)

    def _params(self, known: _Written) -> dict[str, str]:
        """Return the stored params, read back once and then remembered."""
        if known.params is None:
            known.params = dict(self.client.get_run(known.mlflow_id).data.params)
        return known.params

    def _stored(self, known: _Written, points: Iterable[Point]) -> dict[tuple[str, int], int]:
        """Return the stored points of these metrics, read back once and then remembered."""
        for key in sorted({p.key for p in points} & known.unread):
            for metric in self.client.get_metric_history(known.mlflow_id, key):
                known.points[key, metric.step] = metric.timestamp
            known.unread.discard(key)
        return known.points

    def _create(self, view: RunView) -> _Written:
        tags = {PARENT: self.parent_id, RUN_ID: view.run_id, IDENTITY: view.identity}
        if self.sweep.git_commit:
            tags["mlflow.source.git.commit"] = self.sweep.git_commit
        run = self.client.create_run(
            self.experiment_id, start_time=view.start_ms or None, tags=tags, run_name=view.name
        )
        self._checkpoints.new(run.info.run_id)
        return _Written(run.info.run_id, None, run.info.status, {_NAME: view.name, _NOTE: ""}, {})

    def _log(self, known: _Written, view: RunView, params: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param

        stored, stored_params = self._stored(known, view.points), self._params(known)
        models = self._checkpoints.of(known.mlflow_id, view)
        if known.digest is None:
            self.client.log_dict(known.mlflow_id, dict(view.config), "config.json")
        fresh = _chunks([item for item in params.items() if item[0] not in stored_params], _PARAMS)
        # A kill can fall between a point of a run and that of its model; the store doubles neither.
        lacking = [p for p in view.points if (p.key, p.step) not in stored or models.lacks(p)]
        missing = _chunks(lacking, _METRICS)
        # Together where there are both: a call costs the store several transactions, and a short run has few.
        for batch, points in zip_longest(fresh, missing, fillvalue=()):
            self.client.log_batch(
                known.mlflow_id,
                metrics=[
                    Metric(p.key, p.value, p.time_ms, p.step, model_id=models.model_id(p)) for p in points
                ],
                params=[Param(key, value) for key, value in batch],
            )
            stored_params.update(batch)
            stored.update({(p.key, p.step): p.time_ms for p in points})
            models.note(points)
        models.finalize()
        if view.status == "RUNNING":
            if known.status != "RUNNING":
                self.client.update_run(known.mlflow_id, status="RUNNING")
                known.status = "RUNNING"
        else:
            self._terminate(known, view.status, view.end_ms)
        words = {_NAME: view.name, _NOTE: view.note[:_TAG_LENGTH]}
        self._tag(known.mlflow_id, {k: v for k, v in words.items() if known.words.get(k) != v})
        # This tag comes last, because it says that everything above has arrived.
        self._tag(known.mlflow_id, {DIGEST: view.digest})
        known.words, known.digest = words, view.digest
        if view.status in OVER:
            # It is seldom written again.
            known.forget()
            self._checkpoints.forget(known.mlflow_id)

    def _chart(self, shown: Mapping[str, Kind]) -> None:
        """Keep the charts that `raysweep ui` opens, where there is something new to draw."""
        if shown.keys() <= self._shown.keys():
            return
        self._shown |= shown
        name, value = charts_key(self.parent_id), charts(self.parent_id, self._shown)
        if self._tags.get(name) != value:
            self.client.set_experiment_tag(self.experiment_id, name, value)
            self._tags[name] = value

    @property
    def runs(self) -> dict[str, str]:
        """MLflow's ids of all runs, by run id."""
        return {run_id: known.mlflow_id for run_id, known in self._runs.items()}

    def _terminate(self, known: _Written, status: Status, end_ms: int | None) -> None:
        self.client.set_terminated(known.mlflow_id, status=status, end_time=end_ms or _now_ms())
        known.status = status

    def _tag(self, mlflow_id: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        if tags:
            self.client.log_batch(mlflow_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def finish(self, status: Status) -> None:
        """End the parent run, and every child that is still RUNNING as KILLED."""
        for known in self._runs.values():
            if known.status == "RUNNING":
                self._terminate(known, "KILLED", end_ms=None)
        self.client.set_terminated(self.parent_id, status=status)


def locate(sweep_name: str, tracking_uri: str, directory: str = "") -> tuple[str, str] | None:
    """Return (experiment id, parent run id) of a sweep, reading only; None if it is not in the store."""
    quiet()
    from mlflow import MlflowClient

    if tracking_uri.startswith(_SQLITE) and not Path(tracking_uri.removeprefix(_SQLITE)).exists():
        return None
    client = MlflowClient(tracking_uri=tracking_uri)
    experiment = client.get_experiment_by_name(sweep_name)
    if experiment is None:
        return None
    found = client.search_runs(
        [experiment.experiment_id],
        filter_string=_is_parent(sweep_name, directory),
        order_by=_OLDEST_FIRST,
        max_results=1,
    )
    return (experiment.experiment_id, found[0].info.run_id) if found else None


def children(tracking_uri: str, experiment_id: str, parent_run_id: str, limit: int) -> list[str]:
    """Return MLflow's ids of at most `limit` runs of a sweep, the oldest first; reading only."""
    quiet()
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=tracking_uri).search_runs(
        [experiment_id],
        filter_string=f"tags.`{PARENT}` = '{parent_run_id}'",
        order_by=_OLDEST_FIRST,
        max_results=limit,
    )
    return [run.info.run_id for run in found]


def _is_parent(sweep_name: str, directory: str) -> str:
    """Return the filter that finds a sweep's parent run; `directory` is as in `SweepView`."""
    condition = f"tags.`{SWEEP}` = {_quoted(sweep_name)}"
    return f"{condition} AND tags.`{DIRECTORY}` = {_quoted(directory)}" if directory else condition


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _quoted(text: str) -> str:
    """Quote a value for MLflow's filter language, which has no escapes."""
    mark = '"' if "'" in text else "'"
    return f"{mark}{text}{mark}"


def _now_ms() -> int:
    return round(time.time() * 1000)
