"""MLflow, written by one writer in the driver: a view of the ledger that can be rebuilt from it.

Only this room imports mlflow, and only when a store is opened, not when the room is imported.
"""

from raysweep.tracking.artifacts import keep_files
from raysweep.tracking.server import serve
from raysweep.tracking.tracker import Tracker, tracking_uri
from raysweep.tracking.ui import comparison_links, deep_link, serve_command, served
from raysweep.tracking.view import Point, RunView, Status, SweepView, metric_name, run_view
from raysweep.tracking.writer import Location, MLflowWriter, default_tracking_uri

__all__ = [
    "Location",
    "MLflowWriter",
    "Point",
    "RunView",
    "Status",
    "SweepView",
    "Tracker",
    "comparison_links",
    "deep_link",
    "default_tracking_uri",
    "keep_files",
    "metric_name",
    "run_view",
    "serve",
    "serve_command",
    "served",
    "tracking_uri",
]
