"""The figures of a sweep's claims: those in which a reader sees what a verdict says."""

from __future__ import annotations

import re

from raysweep.evaluation.metric import Description
from raysweep.report.columns import accuracies_of, loss_of
from raysweep.report.data import Measurements
from raysweep.report.figures import across_sizes, along_training
from raysweep.report.headline import legend, pair
from raysweep.report.parts import capital, figure, small
from raysweep.sweep.claims import About, Claim, Larger, Longer, Questions

#: Most accuracies of a sweep.
PLACES = 1000


def suite_figures(measured: Measurements, questions: Questions, *, name: str, place: int = 0) -> str:
    """Return the legend and the figures of all claims as HTML; a sentence where there is nothing to draw.

    A claim on steps is drawn over steps, one on sizes over parameters, and all others as accuracy against
    loss and flatness.  `name` begins the names of the figures; it is another one for each sweep of a page,
    and so is `place`, a multiple of `PLACES`.
    """
    shown: dict[str, str] = {}
    stacked: dict[str, str] = {}
    for claim in questions.claims or (Claim(longer=Longer()),):
        about = claim.about
        for accuracy in accuracies_of(measured, about):
            kind = "steps" if isinstance(about, Longer) else "sizes" if isinstance(about, Larger) else "pair"
            key = f"{name}-{kind}-{measured.named(accuracy)}"
            if kind == "pair" and key not in shown:
                at = place + len(shown)
                shown[key] = pair(measured, accuracy, name=name, tolerance=questions.tolerance, place=at)
            elif kind != "pair" and key not in stacked:
                stacked[key] = _stacked(measured, about, accuracy, key)
    # Stacks of panels stand side by side.
    beside = f'<div class="pair">{"".join(stacked.values())}</div>' if stacked else ""
    body = "".join(shown.values()) + beside
    if not body:
        return small("Not enough data: no accuracy has been measured.")
    # Each sweep of a page has a legend, and their markers are names of the page.
    keys = re.sub(r'(id="|#)key-', rf"\g<1>{name}-key-", legend(measured, questions.tolerance))
    return f'{keys}<div class="pairs">{body}</div>'


def _stacked(measured: Measurements, about: About, accuracy: Description, key: str) -> str:
    """Return an accuracy, the loss and the flatness over steps or sizes, as a claim asks."""
    loss = loss_of(measured)
    metrics = [accuracy.name, *([loss.name] if loss else []), *(m.name for m in measured.comparable())]
    mark = "".join(letter if letter.isalnum() else "-" for letter in key)
    over_seeds = "mean over seeds, bars ± one standard error over seeds."
    if isinstance(about, Longer):
        drawn = along_training(measured, metrics, name=mark)
        caption = f"Over training steps: {over_seeds}"
    else:
        found = across_sizes(measured, metrics, name=mark)
        drawn, step = found if found is not None else (None, 0)
        caption = f"Over parameters, at step {step:,}, the last that all sizes have reached: {over_seeds}"
    if drawn is None:
        return small(f"{capital(accuracy.title)}: not enough data for this figure.")
    return figure(drawn, f"{key}.csv", caption)
