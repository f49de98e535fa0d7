"""Checks the tracking URI of a sweep: a server, or a database that MLflow opens in the process.

Loading a sweep checks it, so that an impossible URI is reported before anything starts.
"""

from __future__ import annotations

import os

from raysweep.errors import ConfigError

_DATABASES = ("postgresql", "mysql", "mssql")
_SQLITE = "sqlite:///"
_ACCEPTED = (
    "a server (http://host:port, https://..., databricks) or a database "
    "(sqlite:////absolute/path/mlflow.db, postgresql://..., mysql://..., mssql://...)"
)


def is_server(uri: str) -> bool:
    """Return whether a tracking URI names a server, which keeps artifacts and serves pages.

    >>> [is_server(uri) for uri in ("https://mlflow.example.org", "databricks", "sqlite:////a.db")]
    [True, True, False]
    """
    return uri.startswith(("http://", "https://", "databricks"))


def check_tracking_uri(uri: str | None) -> str | None:
    """Return a usable tracking URI; None means SQLite in the sweep's folder.

    Raises `ConfigError` for a relative SQLite file, which each process would look for elsewhere, and for a
    folder of files, which MLflow no longer accepts.
    """
    if uri is None or is_server(uri):
        return uri
    scheme = uri.partition("://")[0].partition("+")[0]
    if "://" in uri and scheme in _DATABASES:
        return uri
    if uri.startswith("sqlite"):
        path = uri.removeprefix(_SQLITE)
        if path != uri and os.path.isabs(path):
            return uri
        inside = path if path not in (uri, "", ":memory:") else "mlflow.db"
        raise ConfigError(
            f"tracking_uri: '{uri}' is not the absolute path of a file; "
            f"write {_SQLITE}{os.path.abspath(inside)} (four slashes)"
        )
    folder = "://" not in uri or scheme == "file"
    what = (
        "is a folder of files, and MLflow keeps no runs in files any more"
        if folder
        else "is of no known kind"
    )
    raise ConfigError(f"tracking_uri: '{uri}' {what}; name {_ACCEPTED}")
