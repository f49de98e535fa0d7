"""The version of raysweep, written once: pyproject.toml reads it here."""

__version__ = "0.2.0"
