"""Files of a sweep, such as its report, as artifacts of the sweep's own run in MLflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.remote import on_disk
from raysweep.tracking.store import locate
from raysweep.tracking.tracker import settled, shared_directory

if TYPE_CHECKING:
    from raysweep.sweep import Sweep

_log = logging.getLogger("raysweep.tracking")


def keep_files(sweep: Sweep, files: Mapping[Path, str]) -> bool:
    """Copy files and folders to the artifacts of a sweep's run, each into a folder there ("" for none).

    They replace what was there under their names.  Return whether that went well: a sweep does not end badly
    because MLflow cannot be reached.
    """
    uri = settled(sweep)
    try:
        found = locate(sweep.name, uri, shared_directory(sweep))
        if found is None:
            return False
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri)
        for path, folder in files.items():
            log = client.log_artifacts if path.is_dir() else client.log_artifact
            with on_disk(path) as here:
                log(found[1], str(here), folder or None)
    # Clients, drivers, databases and disks each raise their own errors.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        _log.warning("MLflow at %s did not take the report: %s", uri, reason)
        return False
    return True
