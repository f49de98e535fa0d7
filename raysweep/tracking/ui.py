"""Links to a sweep in MLflow's own pages, and the command that serves them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from raysweep.errors import ConfigError, StorageError
from raysweep.sweep.tracking_uri import is_server
from raysweep.tracking.charts import charts_name
from raysweep.tracking.store import children, locate
from raysweep.tracking.tracker import settled, shared_directory, tracking_uri

if TYPE_CHECKING:
    from raysweep.sweep import Sweep


#: Without it MLflow's pages open in the mode for agents.
_MODE = "workflowType=machine_learning"
#: Most runs of one comparison, because addresses and pages have limits.
COMPARED = 100


def compare_link(base_url: str, experiment_id: str, run_ids: Sequence[str]) -> str:
    """Return the address of MLflow's comparison of runs side by side.

    >>> compare_link("http://127.0.0.1:5000", "1", ["ab", "cd"])
    'http://127.0.0.1:5000/#/compare-runs?runs=%5B%22ab%22%2C%22cd%22%5D&experiments=%5B%221%22%5D'
    """
    lists = {"runs": list(run_ids), "experiments": [experiment_id]}
    query = urlencode({k: json.dumps(v, separators=(",", ":")) for k, v in lists.items()}, quote_via=quote)
    return f"{base_url.rstrip('/')}/#/compare-runs?{query}"


def deep_link(base_url: str, experiment_id: str, parent_run_id: str) -> str:
    """Return the address of MLflow's charts of all runs of one sweep (see `raysweep.tracking.charts`).

    >>> deep_link("http://127.0.0.1:5000/", "1", "ab12").partition("workflowType=machine_learning&")[::2]
    ('http://127.0.0.1:5000/#/experiments/1/runs?', 'compareRunsMode=CHART&viewStateShareKey=raysweep-ab12')
    """
    query = {"compareRunsMode": "CHART", "viewStateShareKey": charts_name(parent_run_id)}
    return f"{base_url.rstrip('/')}/#/experiments/{experiment_id}/runs?{_MODE}&{urlencode(query)}"


def comparison_links(sweep: Sweep, base_url: str) -> dict[str, str]:
    """Return links into MLflow's pages by what they show, on `base_url` or on the server of the sweep.

    The first leads to the charts of accuracy against loss and flatness.  The next compares the sweep's runs
    side by side, if there are any (the oldest hundred).  Then follow its checkpoints as models, and the
    sweep's own run with the report.  This only reads the store, but for the place of its artifacts
    after its folder was moved.  Raises `ConfigError` if the sweep is not in
    it yet, and `StorageError` if it cannot be reached.
    """
    uri = settled(sweep)
    try:
        found = locate(sweep.name, uri, shared_directory(sweep))
        # Databricks has pages of its own, at other addresses.
        linked = found is not None and not uri.startswith("databricks")
        runs = children(uri, *found, COMPARED) if found is not None and linked else []
    # Clients, drivers and databases each raise their own errors.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise StorageError(f"MLflow at {uri} cannot be read: {reason}") from error
    if found is None:
        raise ConfigError(f"sweep '{sweep.name}' is not in MLflow at {uri} yet; launch it first")
    if uri.startswith("databricks"):
        raise ConfigError(f"tracking_uri: '{uri}': open experiment {found[0]} in the workspace's own pages")
    base = (uri if is_server(uri) else base_url).rstrip("/")
    experiment = f"{base}/#/experiments/{found[0]}"
    links = {"charts": deep_link(base, *found)}
    if runs:
        links["runs side by side"] = compare_link(base, found[0], runs)
    return links | {
        "checkpoints": f"{experiment}/models?{_MODE}",
        "report": f"{experiment}/runs/{found[1]}/artifacts?{_MODE}",
    }


def served(sweep: Sweep) -> bool:
    """Return whether a server tracks a sweep and so serves its pages already."""
    return is_server(tracking_uri(sweep))


def serve_command(sweep: Sweep, port: int = 5000) -> list[str]:
    """Return the command that serves a sweep's store on 127.0.0.1, as a list of arguments.

    Raises `ConfigError` if a server tracks the sweep; open that server instead.
    """
    uri = tracking_uri(sweep)
    if is_server(uri):
        raise ConfigError(f"tracking_uri: '{uri}' is a server already; open the link in a browser")
    return server_command(uri, port)


def server_command(store_uri: str, port: int) -> list[str]:
    """Return the command that serves a database on 127.0.0.1, reachable from this machine alone."""
    return [
        *(sys.executable, "-m", "mlflow", "server"),
        *("--backend-store-uri", store_uri),
        *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
    ]
