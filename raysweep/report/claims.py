"""The claims of a sweep, tested.

Every claim is about an accuracy at equal loss, and its unit of replication is the run.  The loss is held in
three ways: by a smooth function of it, by strata of neighbours in loss, and by pairs of checkpoints of equal
loss (`raysweep.report.association`, `raysweep.report.matching`).  The first is the one that is judged.

- `flatter`: the rank correlation of flatness and accuracy.  Flatness is observed and not assigned, so what
  is peculiar to a configuration counts once, however many seeds it has: clusters are configurations.
- `longer`: accuracy over log₂ of the step, within runs; clusters are runs.  Here and in what follows accuracy
  is a function of the logarithm of the excess loss, or of a loss whose least value is not known.
- `larger`: accuracy over log₂ of the number of parameters, beside the variant; clusters are runs.  It holds
  for the sizes of the sweep.
- `algorithm`: the difference of accuracy between two algorithms, beside size; clusters are runs.
- `beats`: mean over runs of the accuracy of the last checkpoint less that of the look-up table, seed by seed
  of the probe (`raysweep.report.reference`), or with the errors of both where seeds are not stored.

Without claims in the sweep file, those are taken that follow from what it varies and that it can estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raysweep.report.columns import accuracies_of, loss_of
from raysweep.report.data import Measurements, measurements
from raysweep.report.estimates import NOTHING, beats, flatter, headed, treated
from raysweep.report.paired import Draws, Key, LossDraws
from raysweep.report.regression import Array
from raysweep.report.verdict import Asked, Verdict, judged
from raysweep.sweep.claims import About, Algorithm, Beats, Claim, Flatter, Larger, Longer, Questions
from raysweep.sweep.tidy import tidy

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.sweep import Sweep

#: Share of the tolerance of saturation up to which two losses count as equal.
MATCHED = 0.1


def sweep_verdicts(
    sweep: Sweep,
    frame: pd.DataFrame | None = None,
    questions: Questions | None = None,
    measured: Measurements | None = None,
) -> list[Verdict]:
    """Return the verdicts on the claims of a sweep, in the order of its file.

    `frame` is its tidy table, and `measured` are its measurements, where they have been made already.
    `questions` take the place of its own.
    Losses are compared sentence by sentence, and probes with the look-up table's seed by seed, where the
    ledger has their values.
    """
    if measured is None:
        measured = measurements(tidy(sweep.ledger(), sweep) if frame is None else frame)
    loss = loss_of(measured)
    draws = None if loss is None else LossDraws(sweep, loss)
    return verdicts(measured, questions or sweep.questions, draws, Draws(sweep))


def verdicts(
    measured: Measurements,
    questions: Questions,
    draws: Mapping[Key, Array] | None = None,
    stored: Draws | None = None,
) -> list[Verdict]:
    """Return the verdicts on claims, judged together.

    `draws` are those of `raysweep.report.paired.LossDraws`, `stored` those of all else.
    """
    claims = default_claims(measured) if questions.claims is None else questions.claims
    known = {} if draws is None else draws
    asked = [_asked(measured, claim, questions.tolerance, known, stored) for claim in claims]
    if questions.claims is None:
        # Nobody has asked for these: one that the sweep has no answer to is left out.
        asked = [one for one in asked if not math.isnan(one.main.value)]
    return judged(asked)


def default_claims(measured: Measurements) -> tuple[Claim, ...]:
    """Return the claims that follow from what a sweep varies."""
    found = []
    table = measured.checkpoints
    if not measured.shown("accuracy") or table.empty:
        return ()
    if measured.comparable():
        found.append(Claim(flatter=Flatter()))
    if table.groupby("run_id")["step"].nunique().gt(1).any():
        found.append(Claim(longer=Longer()))
    if len(measured.sizes) > 1:
        found.append(Claim(larger=Larger()))
    kinds = {str(label).partition("-")[0] for label in table["algorithm"]}
    if {"adamw", "adversarial"} <= kinds:
        found.append(Claim(algorithm=Algorithm(better="adamw", than="adversarial")))
    if any(metric.name in measured.reference for metric in measured.shown("accuracy")):
        found.append(Claim(beats=Beats()))
    return tuple(found)


def claim_tolerances(questions: Questions) -> set[float]:
    """Return the nats up to which two losses count as equal in the claims of a sweep."""
    claims = [Claim(longer=Longer())] if questions.claims is None else questions.claims
    return {_near(claim.about, questions.tolerance) for claim in claims if claim.beats is None}


def _near(about: About, tolerance: float) -> float:
    return about.tolerance or MATCHED * tolerance


def _asked(
    measured: Measurements,
    claim: Claim,
    tolerance: float,
    draws: Mapping[Key, Array],
    stored: Draws | None,
) -> Asked:
    about, loss = claim.about, loss_of(measured)
    accuracies = accuracies_of(measured, about)
    near = _near(about, tolerance)
    if not accuracies:
        return _without(claim, "no such accuracy has been measured")
    if isinstance(about, Beats):
        return beats(measured, about, accuracies, stored)
    if loss is None:
        return _without(claim, "no loss has been measured")
    if isinstance(about, (Longer, Larger, Algorithm)):
        return treated(measured, about, accuracies, loss, near, draws)
    if isinstance(about, Flatter):
        known = {metric.name: metric for metric in measured.comparable()}
        if about.metric is not None and about.metric in measured.metrics:
            known = {about.metric: measured.metrics[about.metric]}
        if not known or (about.metric is not None and about.metric not in known):
            return _without(claim, f"no {about.metric or 'flatness'} has been measured for all checkpoints")
        return flatter(measured, about, accuracies, loss, next(iter(known.values())), near, draws)
    raise TypeError(f"{type(about).__name__} is no claim")


def _without(claim: Claim, reason: str) -> Asked:
    """Return a claim about which nothing can be said."""
    head, text = headed(claim.about)
    unit = "ρ" if claim.flatter else "accuracy"
    return Asked(about=head, says=text, unit=unit, expected=1, least=1.0, main=NOTHING, reason=reason)
