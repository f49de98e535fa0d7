"""The errors that raysweep raises on purpose.

A message names the field, the value and the remedy, on one line where it can: the command line prints it
as it is and exits with the class's `exit_code`.  Anything that is not a `RaysweepError` is a defect and
keeps its traceback.
"""


class RaysweepError(Exception):
    """Base of all known errors; the command line exits with `exit_code`."""

    exit_code = 1


class ConfigError(RaysweepError):
    """A configuration (sweep file, override, argument) that cannot be accepted as it stands."""

    exit_code = 2


class DataError(RaysweepError):
    """Data that is malformed, missing or outside a language's support."""

    exit_code = 2


class IdentityError(RaysweepError):
    """Stored results that belong to another configuration than the one given."""

    exit_code = 2


class LockedError(RaysweepError):
    """Another process is working on the same sweep."""

    exit_code = 2


class CheckpointError(RaysweepError):
    """A checkpoint that is missing, torn or altered."""


class RunFailedError(RaysweepError):
    """A run that cannot go on, such as a loss that is not finite."""

    exit_code = 3


class StorageError(RaysweepError):
    """Storage, cluster or tracking server that cannot be reached."""

    exit_code = 4
