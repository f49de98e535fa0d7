"""Tidy tables from rows that a test makes up."""

from collections.abc import Mapping, Sequence

import pandas as pd

from raysweep.sweep.tidy import FIXED


def arranged(rows: Sequence[Mapping[str, object]], head: Sequence[str]) -> pd.DataFrame:
    """Return rows as `raysweep.sweep.tidy` arranges and types them."""
    columns = [*head, *(name for name in FIXED if name not in head)]
    whole, real = ("seed", "parameters", "step", "n"), ("value", "standard_error", "least")
    kinds = dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64")
    return pd.DataFrame(rows, columns=columns).astype(kinds)
