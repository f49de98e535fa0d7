"""Sentences on how sure the verdicts are, and the words that a page uses."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.finetune import FINETUNE
from raysweep.evaluation.probe_metrics import PROBE
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.report.correlations import Correlations
from raysweep.report.data import Measurements
from raysweep.report.format import signed
from raysweep.report.parts import small
from raysweep.report.statistics import mean_and_error
from raysweep.report.verdict import ALPHA, Finding, Verdict, effect


def reading(verdicts: Sequence[Verdict], measured: Measurements, rows: Sequence[Correlations]) -> str:
    """Return paragraphs on how sure the verdicts are, and the words of the page, as HTML.

    `rows` are the correlations of all accuracies.
    """
    told = [_surely(verdict, len(verdicts), measured) for verdict in verdicts if verdict.adjusted is not None]
    told += [_by_one_way(verdict) for verdict in verdicts]
    told.append(_elsewhere(verdicts, measured, rows))
    sure = "".join(map(small, filter(None, told)))
    meant = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in _words(measured))
    return f"{'<h3>How sure this is</h3>' if sure else ''}{sure}<h3>Words</h3><dl>{meant}</dl>"


def _surely(verdict: Verdict, claims: int, measured: Measurements) -> str:
    """Return what a verdict on flatness rests on: its test, its parts, its variants, and what was not set."""
    main, shown = verdict.main, verdict.adjusted
    assert shown is not None
    told = [f"{verdict.about}{verdict.says}: {verdict.outcome}."]
    if main.tested:
        among = f", and {verdict.p_corrected:.2g} among {claims} claims" if claims > 1 else ""
        told.append(f"p = {main.p:.2g} alone{among}.")
    told += [_parts(verdict), _variants(shown.within)]
    if verdict.units == "configurations":
        sizes = ["size"] if len(measured.sizes) > 1 else []
        variants = [f"variant ({', '.join(measured.variants)})"] if 1 < len(measured.variants) <= 4 else []
        varied = " and ".join([*sizes, *variants]) or "their settings"
        told.append(
            f"Flatness was observed and not set: configurations differ in {varied}, which may itself make a "
            "model both flatter and better."
        )
    return " ".join(filter(None, told))


def _by_one_way(verdict: Verdict) -> str:
    """Return a caution on an effect that is sure by the way that is judged and not by another, else ""."""
    unsure = [way for way in verdict.ways if way.tested and way.p > ALPHA]
    if verdict.outcome not in ("supported", "contradicted") or not unsure:
        return ""
    ways = " and ".join(f"by {way.name} ({effect(way, verdict.unit)}, p = {way.p:.2g})" for way in unsure)
    return (
        f"{verdict.about}{verdict.says}: {verdict.outcome} by a smooth function of the loss "
        f"(p = {verdict.main.p:.2g}), which is judged, and not sure {ways}: read it with caution."
    )


def _parts(verdict: Verdict) -> str:
    """Return in which parts of its variation an association is seen, "" without parts."""
    known = [part for part in verdict.parts if part.tested]
    if not known:
        return ""
    seen = [part for part in known if part.p <= ALPHA]
    unseen = [part for part in known if part.p > ALPHA]
    if not seen:
        return f"In no part alone is a relation seen: {_listed(unseen, ',')}."
    but = f", and not {_listed(unseen, ' or')}" if unseen else ""
    return f"A relation is seen {_listed(seen, ' and')}{but}."


def _variants(found: Sequence[Finding]) -> str:
    """Return the relation in each variant alone, "" without variants."""
    if not found:
        return ""
    everywhere = all(one.p <= ALPHA for one in found) and len({one.value > 0 for one in found}) == 1
    how = "It is alike" if everywhere else "It is not seen"
    return f"{how} in each variant: {_listed(found, ',')}."


def _listed(found: Sequence[Finding], last: str) -> str:
    texts = [f"{one.name} ({effect(one, 'ρ')})" for one in found]
    return f"{last} ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _elsewhere(verdicts: Sequence[Verdict], measured: Measurements, rows: Sequence[Correlations]) -> str:
    """Return what is seen on tasks that no claim is about, "" where there are none."""
    about = {verdict.about for verdict in verdicts}
    others = [m for m in measured.shown("accuracy") if f"Task {m.of.get('task')}: " not in about]
    if "" in about or not others:
        return ""
    names = [measured.named(metric) for metric in others]
    compared = {row.task: row.of_flatness_given_loss for row in reversed(rows) if row.band == "all"}
    related = []
    for name in names:
        found = compared.get(name)
        if found is not None and found.low is not None and found.high is not None:
            between = f"[{signed(found.low)}, {signed(found.high)}]"
            related.append(f"{signed(found.value)} {between} on {name}")
    table, apart = measured.checkpoints, []
    last = table.loc[table.groupby("run_id")["step"].idxmax()]
    for metric, name in zip(others, names, strict=True):
        values = last[metric.name].dropna().to_numpy(dtype=float)
        if metric.name in measured.reference and len(values) > 1:
            mean, error = mean_and_error(values - measured.reference[metric.name])
            apart.append(f"{mean:+.3f} ± {error:.3f} on {name}".replace("-", "−"))
    told = (
        f"No claim is about {'task' if len(names) == 1 else 'tasks'} {' and '.join(names)}, so no verdict is."
    )
    if related:
        told += f" There ρ of flatness and accuracy at equal loss is {', '.join(related)}."
    if apart:
        shown = ", ".join(apart)
        told += f" Less those of the look-up table, the accuracies of the last checkpoints are {shown}."
    return told


def _words(measured: Measurements) -> list[tuple[str, str]]:
    """Return the words that a page on these measurements uses, with what they mean."""
    shown = measured.shown()
    quantities = {metric.quantity for metric in shown}
    words = []
    if EXCESS_LOSS.name in measured.metrics:
        words.append(
            ("excess loss", "the loss above the least possible one, which is the language's entropy")
        )
    for quantity, text in (
        (
            PROBE,
            "accuracy on a task of a linear classifier on the frozen model: how well the model transfers",
        ),
        (FINETUNE, "accuracy on a task after training the model on it: how well the model transfers"),
    ):
        if quantity.name in quantities:
            words.append((quantity.heading, text))
    flat = {metric.name for metric in measured.shown("flatness")}
    if flat & {TRACE.name, ENLARGED.name}:
        trace = "of the loss's Fisher matrix: how fast the loss rises around the weights; smaller is flatter"
        words.append((TRACE.heading, trace))
    if ENLARGED.name in flat:
        words.append((ENLARGED.heading, "of the model seen as one of a shape that holds all of the sweep's"))
    if measured.reference:
        words.append(
            ("look-up table", "the language's exact conditionals, in place of what a model has learnt")
        )
    words += [
        ("configuration", "runs that differ in their seed alone"),
        (
            "ρ [from, to]",
            "rank correlation, with its 95 % interval; below 0, less of the one goes with more of the other",
        ),
        ("accuracy per doubling", "change of accuracy where steps, or parameters, double"),
        ("supported, contradicted", f"the effect differs from zero, at {ALPHA:.0%} for all claims together"),
        (
            "no clear relation",
            "its interval contains zero, and excludes every effect that is worth mentioning",
        ),
        (
            "not enough data",
            "the effect may be as large as is worth mentioning, and may be zero: its interval contains zero, "
            "or does so once all claims are counted",
        ),
    ]
    return words
