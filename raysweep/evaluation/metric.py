"""A metric: a measured number that carries the description of what it measures.

An evaluation describes each of its quantities once, as a constant, and makes its metrics from it:

>>> GAP = Quantity(name="gap/{task}", heading="gap", unit="nats", kind="loss", better="less", live=True)
>>> metric = GAP.mean(np.array([1.0, 3.0]), of={"task": "A"})
>>> metric.name, metric.value, metric.standard_error, metric.label
('gap/A', 2.0, 1.0, 'gap, task A (nats)')

The description is stored with every number.  Live view, MLflow, tidy table and report read it there: they
need neither the evaluation nor a list of names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from raysweep.errors import RunFailedError
from raysweep.languages.base import Estimate

Kind = Literal["loss", "flatness", "accuracy", "diagnostic"]
#: The order in which people see metrics: by kind, then by name.
KINDS: tuple[Kind, ...] = ("loss", "flatness", "accuracy", "diagnostic")

#: The reservation on a number whose interval comes from few inputs, or from a few very large values.
NOT_TRUSTED = "not trusted"

Coordinates = Mapping[str, str | int | float]


class _Facts(BaseModel):
    """The facts about a quantity that hold wherever it is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    #: What people call it; "" for its name.
    heading: str = ""
    #: The heading of a narrow column; "" for `heading`.
    short: str = ""
    kind: Kind = "diagnostic"
    #: Which values are better; None where neither is.
    better: Literal["less", "more"] | None = None
    #: The least possible value of a loss, where it is known: a checkpoint near to it is saturated.
    least: float | None = None
    #: The name of the quantity that holds the value of a guess, in the form of `Quantity.name`.
    baseline: str | None = None
    #: The name of the quantity that holds the best possible value, in the same form.
    ceiling: str | None = None
    #: Whether the live view shows it.
    live: bool = False
    #: Whether the report and the table at the end of a launch show it.
    report: bool = False


class Quantity(_Facts):
    """The description of what an evaluation measures, once or at several coordinates.

    `name` is a format of the coordinates: "probe/{task}" names the metric of task A "probe/A".  Metric names
    are keys in MLflow and in the tidy table, so each is unique within a checkpoint.
    """

    name: str

    def number(
        self,
        value: float,
        *,
        n: int,
        standard_error: float | None = None,
        of: Coordinates | None = None,
        reservations: Iterable[str] = (),
    ) -> Metric:
        """Return a metric.  Raises `RunFailedError` for a value that is not finite."""
        of = dict(of or {})
        name = self.name.format(**of)
        if not math.isfinite(value):
            raise RunFailedError(
                f"{name} is {value}: the model gives no finite log-probabilities or representations; "
                "look at its training loss, and lower the learning rate"
            )
        facts = self.model_dump() | {"name": name, "quantity": self.name, "of": of}
        for link in ("baseline", "ceiling"):
            if facts[link] is not None:
                facts[link] = facts[link].format(**of)
        return Metric(
            **facts, value=value, standard_error=standard_error, n=n, reservations=tuple(reservations)
        )

    def mean(
        self, values: np.ndarray, *, of: Coordinates | None = None, reservations: Iterable[str] = ()
    ) -> Metric:
        """Return the mean of independent `values` [n] with its standard error, in float64.

        Raises `RunFailedError` where the mean is not finite.
        """
        values = np.asarray(values, dtype=np.float64)
        error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
        return self.number(
            float(values.mean()), n=len(values), standard_error=error, of=of, reservations=reservations
        )

    def estimate(
        self, found: Estimate, *, of: Coordinates | None = None, reservations: Iterable[str] = ()
    ) -> Metric:
        """Return an estimate as a metric; an unknown standard error (nan) becomes None.

        Raises `RunFailedError` where the estimate is not finite.
        """
        error = None if math.isnan(found.standard_error) else found.standard_error
        return self.number(found.value, n=found.n, standard_error=error, of=of, reservations=reservations)


class Description(_Facts):
    """The description of one metric: its quantity at its coordinates `of`, such as {"task": "A"}."""

    name: str
    #: The name of the quantity, with the coordinates left open; "" where the metric stands alone.
    quantity: str = ""
    of: dict[str, str | int | float] = {}

    @property
    def place(self) -> str:
        """The values of the coordinates, "" where there are none."""
        return " ".join(map(_text, self.of.values()))

    @property
    def brief(self) -> str:
        """The shortest name of the quantity, without coordinates."""
        return self.short or self.heading or self.name

    @property
    def narrow(self) -> str:
        """The short heading with the values of its coordinates, for a narrow column."""
        return f"{self.brief} {self.place}".strip()

    @property
    def title(self) -> str:
        """The heading with its coordinates, for a sentence."""
        if not self.heading:
            return self.name
        return ", ".join([self.heading, *(f"{key} {_text(value)}" for key, value in self.of.items())])

    @property
    def label(self) -> str:
        """The title with its unit, for an axis of a figure."""
        return self.title + self._in_unit()

    @property
    def column(self) -> str:
        """The heading with the values of its coordinates and its unit, for a column of a table."""
        return (f"{self.heading} {self.place}".strip() if self.heading else self.name) + self._in_unit()

    def _in_unit(self) -> str:
        return "" if self.unit in self.heading else f" ({self.unit})"


class Metric(Description):
    """One measured number.

    `standard_error` is None where there is none, `n` counts independent draws, and `reservations` say in a
    few words each why a reader should not trust the number or its standard error.
    """

    value: float
    standard_error: float | None
    n: int
    reservations: tuple[str, ...] = ()

    def under(self, name: str) -> Metric:
        """Return the metric as one of a further evaluation `name` of its kind; the live view leaves it out.

        >>> metric = Quantity(name="gap/{task}", heading="gap", unit="nats").number(1, n=1, of={"task": "A"})
        >>> metric.under("narrow").name, metric.under("narrow").label
        ('narrow/gap/A', 'gap (narrow), task A (nats)')
        """
        linked = {link: getattr(self, link) for link in ("name", "quantity", "baseline", "ceiling")}
        headed = {"heading": self.heading, "short": self.short}
        return self.model_copy(
            update={key: f"{name}/{text}" for key, text in linked.items() if text}
            | {key: f"{text} ({name})" for key, text in headed.items() if text}
            | {"live": False}
        )


_Described = TypeVar("_Described", bound=Description)


def error_key(name: str) -> str:
    """Return the key of a metric's standard error, wherever numbers stand under keys.

    >>> error_key("excess_loss")
    'excess_loss_se'
    """
    return f"{name}_se"


def numbers(metrics: Iterable[Metric]) -> dict[str, float]:
    """Return the values by name, and the known standard errors under `error_key`."""
    found: dict[str, float] = {}
    for metric in metrics:
        found[metric.name] = metric.value
        if metric.standard_error is not None:
            found[error_key(metric.name)] = metric.standard_error
    return found


def in_order(metrics: Iterable[_Described]) -> list[_Described]:
    """Return descriptions, or metrics, in the order in which people see them."""
    return sorted(metrics, key=lambda metric: (KINDS.index(metric.kind), metric.name))


def _text(value: str | int | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
