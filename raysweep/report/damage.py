"""The rise of the pre-training loss on the page: by fine-tuning, by rounding, and by noise on the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

import pandas as pd

from raysweep.evaluation import finetune, quantize
from raysweep.evaluation.metric import Description, Quantity
from raysweep.evaluation.pretraining_loss import HEADINGS, Loss
from raysweep.report.data import Measurements
from raysweep.report.figures import against, along_training
from raysweep.report.format import number
from raysweep.report.parts import figure, section, small
from raysweep.report.tables import table
from raysweep.report.transfer import heads, last_of, mean_of


@dataclass(frozen=True)
class _Damage:
    """One way to change a model: the quantities of the rise and of the loss after it, and words for both."""

    heading: str
    coordinate: str
    rise: Quantity
    after: Mapping[Loss, Quantity]
    note: str


_WAYS = (
    _Damage(
        "Forgetting by fine-tuning",
        "task",
        finetune.FORGETTING,
        finetune.AFTER,
        "The pre-training loss on the same sentences before and after fine-tuning on a task, with the head "
        "of pre-training as it was. The rise is the loss that fine-tuning costs.",
    ),
    _Damage(
        "Rounded and noisy weights",
        "weights",
        quantize.RISE,
        quantize.AFTER,
        "The pre-training loss on the same sentences before and after a change of the weights. For small "
        "noise, the rise grows with the sharpness of the minimum.",
    ),
)

#: Quantities that these sections draw, so that no other figure has to.
DRAWN = tuple(way.rise.name for way in _WAYS)


def damage_sections(measured: Measurements) -> str:
    """Return a section for each way of changing a model that was measured, as HTML."""
    return "\n".join(filter(None, (_section(measured, way) for way in _WAYS)))


def _section(measured: Measurements, way: _Damage) -> str:
    rises = [metric for metric in measured.metrics.values() if metric.quantity == way.rise.name]
    if not rises:
        return ""
    figures = "".join(_figures(measured, [rise.name for rise in rises], f"rise-{way.coordinate}"))
    words = f" {quantize.in_words(rise.place for rise in rises)}." if way.rise == quantize.RISE else ""
    parts = [small(way.note + words), f'<div class="pair half">{figures}</div>', _table(measured, way, rises)]
    return section(way.heading, "".join(parts))


def _figures(measured: Measurements, rises: list[str], name: str) -> Iterator[str]:
    """Yield the rises along training, and against the first measure of flatness where there is one."""
    along = along_training(measured, rises, name=name)
    if along is not None:
        caption = "Over training steps: mean over seeds, bars ± one standard error over seeds."
        yield figure(along, f"{name}.csv", caption + _left_out(along.data["mean"]))
    for flatness in measured.shown("flatness")[:1]:
        drawn = against(measured, flatness.name, rises, name=f"{name}-{flatness.name}")
        if drawn is not None:
            caption = f"Against {flatness.title}: a dot is a checkpoint, bars are ± one standard error."
            values = pd.Series(drawn.data[rises].to_numpy().ravel())
            yield figure(drawn, f"{name}-{flatness.name}.csv", caption + _left_out(values))


def _left_out(values: pd.Series) -> str:
    """Return a caption's sentence on values that a log axis cannot show; "" for none."""
    hidden = int((values <= 0).sum())
    return f" Not shown: {hidden} without a rise, which a log axis cannot show." if hidden else ""


def _table(measured: Measurements, way: _Damage, rises: list[Description]) -> str:
    """Return the loss before and after, and its rise, at the last milestone of each group."""
    rows: list[list[str]] = []
    losses: dict[str, None] = {}
    for rise in rises:
        loss, after = _after(measured, way, rise)
        losses[loss] = None
        for cells, last in last_of(measured, rise.name):
            before = number((last[after] - last[rise.name]).mean())
            change = [before, number(last[after].mean()), mean_of(last, rise.name)]
            rows.append([escape(rise.place), *cells, *change])
    named = " or ".join(losses)
    headings = [way.coordinate, *heads(measured), f"{named} before", f"{named} after", "rise"]
    note = "The last milestone of each size: means over runs in nats, the rise ± one standard error."
    return small(note) + table([*map(escape, headings)], rows, text=2 + (len(measured.variants) > 1))


def _after(measured: Measurements, way: _Damage, rise: Description) -> tuple[str, str]:
    """Return the heading of the loss that rises, and the metric that holds its value after the change."""
    for loss, quantity in way.after.items():
        name = quantity.name.format(**rise.of)
        if name in measured.metrics:
            return HEADINGS[loss], name
    raise KeyError(f"{rise.name} has no loss after the change beside it")
