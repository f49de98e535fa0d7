"""The verdicts on the page: a sentence for each claim, and the numbers behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from raysweep.report.adjusted import adjusted_figure, caption
from raysweep.report.correlations import Correlations
from raysweep.report.data import Measurements
from raysweep.report.parts import figure, folded, section, small
from raysweep.report.reading import reading
from raysweep.report.tables import table
from raysweep.report.verdict import ALPHA, Finding, Verdict, amount, effect


def claims_section(
    verdicts: Sequence[Verdict],
    measured: Measurements | None = None,
    name: str = "sweep",
    found: Sequence[Correlations] = (),
) -> str:
    """Return the verdicts as HTML: sentences, and a folded table of ways and parts; "" without claims.

    With the checkpoints of the sweep of a `name` come figures of what the verdicts on flatness rest on, and
    how sure they are; `found` are the correlations of all its accuracies.
    """
    if not verdicts:
        return ""
    lines = "".join(f"<li>{_sentence(verdict)}</li>" for verdict in verdicts)
    rows = [row for verdict in verdicts for row in _rows(verdict)]
    headings = ["claim", "by", "effect [95 % interval]", "p", "clusters"]
    tests = "".join(f"<li>{escape(f'{_claim(v)}: {v.test}.')}</li>" for v in verdicts if v.test)
    note = (
        f"Verdicts hold together at {ALPHA:.0%}, by the p-values among all claims (Holm). “Not enough "
        "data” also says how much it would take; “no clear relation” means that effects worth mentioning are "
        "excluded. The loss is held by a smooth function of it, which is judged, by strata of "
        "neighbours in loss, and by pairs of equal loss. “Mixed” is said where these, or the parts of an "
        "association (between configurations, between seeds, along a run), contradict each other."
    )
    numbers = f"{small(note)}{table(headings, rows, text=2, wrap=0)}<ul>{tests}</ul>"
    behind = folded("The numbers behind the verdicts", numbers)
    drawn = ""
    if measured is not None:
        drawn = _figures(verdicts, measured, name, reading(verdicts, measured, found))
    return section("Verdicts", f'<ul class="findings">{lines}</ul>{drawn}{behind}', fold=False)


def _figures(verdicts: Sequence[Verdict], measured: Measurements, name: str, read: str) -> str:
    """Return the figures of verdicts on flatness, those after the first two folded, and what is to read."""
    figures = []
    for place, verdict in enumerate(verdicts):
        drawn = adjusted_figure(measured.drawn, verdict, name=f"adjusted-{place}")
        if drawn is not None:
            figures.append(figure(drawn, f"{name}-adjusted-{place}.csv", caption(verdict)))
    first, others = (f'<div class="pair">{"".join(some)}</div>' for some in (figures[:2], figures[2:]))
    if not figures:
        return f'<div class="read">{read}</div>'
    beside = f'<div class="beside">{first}<div class="read">{read}</div></div>'
    return beside + (folded("Further claims about flatness", others) if figures[2:] else "")


def _claim(verdict: Verdict) -> str:
    return f"{verdict.about}{verdict.says}"


def _sentence(verdict: Verdict) -> str:
    claim, outcome = escape(_claim(verdict)), escape(verdict.outcome)
    return f"{claim}: <b>{outcome}</b> ({escape(verdict.numbers)})"


def _rows(verdict: Verdict) -> list[list[str]]:
    within = verdict.adjusted.within if verdict.adjusted is not None else ()
    found = [verdict.main, *verdict.ways, *verdict.parts, *within]
    rows = [["", *_cells(one, verdict.unit)] for one in found]
    rows[0][0] = escape(_claim(verdict))
    if not math.isnan(verdict.p_corrected):
        rows.insert(1, ["", "among all claims", "", f"{verdict.p_corrected:.2g}", ""])
    if not math.isnan(verdict.detectable):
        least = escape(f"from {amount(verdict.detectable, verdict.unit)} on")
        rows.append(["", "seen with a probability of 80 %", least, "", ""])
    return rows


def _cells(found: Finding, unit: str) -> list[str]:
    if math.isnan(found.value):
        return [escape(found.name), '<span class="note">not enough data</span>', "", str(found.clusters)]
    shown = escape(effect(found, unit))
    if not found.tested:
        shown += ' <span class="note">[not enough data]</span>'
        return [escape(found.name), shown, "", str(found.clusters)]
    return [escape(found.name), shown, f"{found.p:.2g}", str(found.clusters)]
