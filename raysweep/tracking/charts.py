"""The charts that a link into MLflow opens: accuracy against loss and against flatness, a dot for each run.

MLflow keeps the state of a page under a key in a tag of the experiment, and a link with that key opens the
page in this state.  (`viewStateShareKey` in MLflow's `useSharedExperimentViewState`; the state is that of
`ExperimentPageUIState` and `ExperimentPageSearchFacetsState`.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raysweep.evaluation.metric import Kind
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.tracking.view import ERRORS, OTHERS, TRAINING

_PREFIX = "mlflow.sharedViewState."
#: Most accuracies that get charts: the value of a tag is short.
_MOST = 4
#: The name that MLflow gives to the section of metrics without one, and our own section.
_PLAIN, _OURS = "Model metrics", "Accuracy against loss and flatness"


def charts_name(parent_run_id: str) -> str:
    """Return the key of a sweep's charts in an address."""
    return f"raysweep-{parent_run_id[:12]}"


def charts_key(parent_run_id: str) -> str:
    """Return the tag of the experiment that holds a sweep's charts."""
    return _PREFIX + charts_name(parent_run_id)


def of_sweep(parent_run_id: str) -> str:
    """Return MLflow's filter of a sweep's runs."""
    return f"tags.`mlflow.parentRunId` = '{parent_run_id}'"


def charts(parent_run_id: str, shown: Mapping[str, Kind]) -> str:
    """Return the state of MLflow's page that shows a sweep's runs, as JSON.

    `shown` are metrics by their kinds.  The runs are a flat list, as MLflow shows nested ones unless they are
    sorted by their times.
    """
    of = {kind: sorted(name for name, its in shown.items() if its == kind) for kind in set(shown.values())}
    losses, flatness = of.get("loss", []), of.get("flatness", [])
    if ENLARGED.name in flatness:
        # Models differ in size, and traces in their own parameters do not compare them.
        flatness = [ENLARGED.name, *(name for name in flatness if name not in (ENLARGED.name, TRACE.name))]
    accuracies = of.get("accuracy", [])[:_MOST]
    pairs = [(x, y) for y in accuracies for x in (*losses[:1], *flatness[:1])]
    if not accuracies:
        pairs = [(x, y) for x in losses[:1] for y in flatness[:1]]
    columns = [*losses[:1], *flatness[:1], *accuracies]
    # Sections in our order; those with errors are closed, and the others are as MLflow makes them.
    groups = sorted({name.rpartition("/")[0] for name in shown if "/" in name} | {TRAINING})
    sections = [(_OURS, True), (_PLAIN, True), *((name, True) for name in groups)]
    sections += [(ERRORS, False), (OTHERS, False)]
    state: dict[str, Any] = {
        "searchFilter": of_sweep(parent_run_id),
        "orderByKey": f"metrics.`{columns[0]}`" if columns else "attributes.run_name",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": [f"metrics.`{name}`" for name in columns],
        "isAccordionReordered": True,
        "compareRunCharts": [_scatter(k, x, y) for k, (x, y) in enumerate(pairs)],
        "compareRunSections": [
            {"uuid": name, "name": name, "display": display, "isReordered": False, "isGenerated": True}
            for name, display in sections
        ],
    }
    return json.dumps(state, separators=(",", ":"))


def _scatter(number: int, x: str, y: str) -> dict[str, Any]:
    return {
        "type": "SCATTER",
        "uuid": f"raysweep-{number}",
        "metricSectionId": _OURS,
        "runsCountToCompare": 100,
        "deleted": False,
        "isGenerated": False,
        "xaxis": {"key": x, "type": "METRIC"},
        "yaxis": {"key": y, "type": "METRIC"},
    }
