"""The checkpoints of a run as logged models of MLflow, each with the metrics of its milestone.

MLflow searches models by metrics, such as `metrics.excess_loss < 0.02`.  A model is found by the run that it
comes from and by its param `step`, never by name.  Its files stay where raysweep keeps checkpoints.

A server older than MLflow 3 knows no models; it gets none, and all else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raysweep.tracking.view import Point, RunView

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_log = logging.getLogger("raysweep.tracking")

#: The type of the models, and the param that holds the step.
TYPE, STEP = "checkpoint", "step"
#: Characters that the names of models may not have.
_NAMES = str.maketrans(dict.fromkeys("/:.%\"'", "-"))
#: Codes of a server that knows no models.
_UNKNOWN = ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "METHOD_NOT_ALLOWED")


@dataclass
class _Model:
    model_id: str
    ready: bool
    metrics: set[str]


@dataclass
class Models:
    """The models of one run by step; without a model for a step, its points belong to the run alone."""

    client: MlflowClient
    by_step: dict[int, _Model] = field(default_factory=dict)

    def lacks(self, point: Point) -> bool:
        """Return whether a point is still to be written to its model."""
        model = self.by_step.get(point.step) if point.model else None
        return model is not None and point.key not in model.metrics

    def model_id(self, point: Point) -> str | None:
        """Return the model that a point belongs to, None where there is none."""
        model = self.by_step.get(point.step) if point.model else None
        return model.model_id if model is not None else None

    def note(self, points: Iterable[Point]) -> None:
        """Note that points have been written."""
        for point in points:
            if point.model and point.step in self.by_step:
                self.by_step[point.step].metrics.add(point.key)

    def finalize(self) -> None:
        """Mark the models as ready whose points have all been written."""
        for model in self.by_step.values():
            if not model.ready:
                self.client.finalize_logged_model(model.model_id, "READY")
                model.ready = True


class Checkpoints:
    """The models of all runs of an experiment, read back once for each run that an earlier process wrote."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._client, self._experiment_id = client, experiment_id
        self._runs: dict[str, Models] = {}
        self._known = True

    def new(self, mlflow_id: str) -> None:
        """Note that a run has just been made, and so has no models."""
        self._runs[mlflow_id] = Models(self._client)

    def of(self, mlflow_id: str, view: RunView) -> Models:
        """Return the models of a run, with one for every step that the view has measurements of."""
        steps = sorted({point.step for point in view.points if point.model})
        if not steps or not self._known:
            return Models(self._client)
        from mlflow.exceptions import MlflowException

        try:
            models = self._read(mlflow_id)
            for step in steps:
                if step not in models.by_step:
                    models.by_step[step] = self._create(mlflow_id, view, step)
        except MlflowException as error:
            if error.error_code not in _UNKNOWN:
                raise
            _log.info("this MLflow server knows no models; checkpoints are in their runs alone")
            self._known = False
            return Models(self._client)
        return models

    def forget(self, mlflow_id: str) -> None:
        """Leave the models of a run to the store, to be read back where they are needed again."""
        self._runs.pop(mlflow_id, None)

    def delete(self, mlflow_id: str) -> None:
        """Delete the models of a run that is deleted."""
        if self._known:
            for model in self._search(mlflow_id):
                self._client.delete_logged_model(model.model_id)
            self._runs.pop(mlflow_id, None)

    def _read(self, mlflow_id: str) -> Models:
        if mlflow_id not in self._runs:
            models = Models(self._client)
            for found in self._search(mlflow_id):
                step = int(found.params[STEP])
                if step in models.by_step:
                    # A request that was executed but not answered can leave a second one; the first stands.
                    self._client.delete_logged_model(found.model_id)
                    continue
                keys = {metric.key for metric in found.metrics or ()}
                models.by_step[step] = _Model(found.model_id, str(found.status) == "READY", keys)
            self._runs[mlflow_id] = models
        return self._runs[mlflow_id]

    def _search(self, mlflow_id: str) -> list[LoggedModel]:
        """Return the models of a run, the oldest first."""
        found: list[LoggedModel] = []
        token: str | None = None
        while True:
            page = self._client.search_logged_models(
                [self._experiment_id], filter_string=f"source_run_id = '{mlflow_id}'", page_token=token
            )
            found += page
            token = page.token
            if not token:
                return sorted(found, key=lambda model: (model.creation_timestamp, model.model_id))

    def _create(self, mlflow_id: str, view: RunView, step: int) -> _Model:
        made = self._client.create_logged_model(
            self._experiment_id,
            name=f"{view.name} · step {step:,}".translate(_NAMES),
            source_run_id=mlflow_id,
            params={STEP: str(step)},
            model_type=TYPE,
        )
        return _Model(made.model_id, False, set())
