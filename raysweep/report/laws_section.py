"""The power laws of a sweep on the page: exponents, a figure of the loss, and the steps of equal loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from raysweep.report.axes import log_axis
from raysweep.report.data import Measurements, named_run
from raysweep.report.drawing import RC, Drawn, hover
from raysweep.report.figures import panels
from raysweep.report.format import count, number
from raysweep.report.law_fit import FAR, Meeting
from raysweep.report.laws import Found, laws
from raysweep.report.parts import capital, figure, section, small
from raysweep.report.style import DASHES, INK, MARKERS, MUTED, series
from raysweep.report.tables import table

#: Curves are drawn up to this multiple of the last milestone at most, and up to this one at least.
_MOST, _LEAST = 10.0, 1.5
_PLACES = 60


def laws_section(measured: Measurements, name: str) -> str:
    """Return the power laws of a sweep, or a sentence on what they would take; "" without anything to fit."""
    found = laws(measured)
    if not found:
        return ""
    varied = len(measured.variants) > 1
    parts = [_exponents([one for one in found if one.fit is not None], varied)]
    reasons: dict[str, dict[str, list[str]]] = {}
    for one in found:
        if one.reason:
            reasons.setdefault(one.reason, {}).setdefault(one.asked.title, []).append(one.asked.variant)
    for reason, titles in reasons.items():
        told = [
            title + (f" ({', '.join(of)})" if len(of) < len(measured.variants) else "")
            for title, of in titles.items()
        ]
        parts.append(small(f"{capital('; '.join(told))}: {reason}."))
    for one in found:
        if one.fit is not None and one.asked.metric.kind == "loss":
            variant = measured.variants.index(one.asked.variant)
            drawn = law_figure(measured, one, name=f"laws-{variant}")
            title = f", {one.asked.variant}" if varied else ""
            caption = (
                f"{capital(one.asked.title)}{title}, and its law with 95 % bands; hollow: before the law "
                f"holds. Right of the line the law goes beyond the data. A star is where a size reaches the "
                "loss that the next larger one has at its last milestone, with its 95 % interval."
            )
            end = f"-{variant}" if varied else ""
            shown = figure(drawn, f"{name}-laws{end}.csv", caption)
            parts.append(f'<div class="pair">{shown}</div>{_sizes(one)}')
    return section("Power laws over steps and parameters", "".join(parts))


def _exponents(found: Sequence[Found], varied: bool) -> str:
    """Return the table of the exponents, "" for none."""
    rows = []
    for one in found:
        assert one.fit is not None
        pure, size = one.over_size, "–"
        if pure is not None:
            size = _between(-float(pure.value), -float(pure.high), -float(pure.low))
        rows.append(
            [
                escape(one.asked.title),
                *([escape(one.asked.variant)] if varied else []),
                _between(*one.fit.exponent),
                size,
                f"{one.start:,}",
                f"{100 * one.misfit:.1f} %",
                f"{one.fit.curves.runs.sum()} of {len(one.sizes)} sizes",
            ]
        )
    if not rows:
        return ""
    headings = ["quantity", *(["variant"] if varied else []), "over steps, β", "over parameters, α"]
    note = (
        "Each quantity as F + B·S^−β over the steps S, with a floor F ≥ 0 and a B of each size and one β for "
        "all of them, from the first milestone at which this holds; and as N^−α over the parameters N at the "
        "last step that all sizes have. “Off by” is the root mean square of the difference from the means "
        "over seeds. Brackets are 95 % intervals: of β over runs, whose spread is taken to be alike in all "
        "sizes; of α over sizes. No interval has the error of sizes that do not share one β, or of a "
        "transient unseen."
    )
    return table([*headings, "from step", "off by", "runs"], rows, text=1 + varied) + small(note)


def _sizes(found: Found) -> str:
    """Return the table of floors and of the steps of equal loss."""
    assert found.fit is not None
    unit = found.asked.metric.unit
    rows = []
    floors = zip(*found.fit.floors(), strict=True)
    for size, (model, floor) in enumerate(zip(found.sizes, floors, strict=True)):
        cells = [escape(model), _between(*map(float, floor))]
        if size + 1 < len(found.sizes):
            meeting = found.fit.equal(size, size + 1)
            value = f"{number(_target(found, size + 1))} of {escape(found.sizes[size + 1])}"
            cells += [value, when(found, size, meeting), ends(found, meeting)]
        else:
            cells += ["–", "–", "–"]
        rows.append(cells)
    headings = ["model", f"floor ({unit})", f"equal loss ({unit})", "at step", "95 % interval"]
    note = (
        "The step at which a size reaches the loss that the next larger one has by its law at its last "
        f"milestone. “Never” is beyond {FAR:.0f} times the last milestone."
    )
    return table([headings[0], *map(escape, headings[1:])], rows, text=1) + small(note)


def _target(found: Found, size: int) -> float:
    assert found.fit is not None
    last = found.fit.curves.last[size : size + 1]
    return float(found.fit.law.at(size, last)[0])


def when(found: Found, size: int, meeting: Meeting) -> str:
    """Return the step of equal loss for a reader, with how far it lies beyond the data."""
    assert found.fit is not None
    if math.isinf(meeting.step):
        return "never, its floor is above"
    if meeting.step < found.start:
        return f"before {found.start:,}"
    beyond = meeting.step / float(np.exp(found.fit.curves.last[size]))
    if beyond > FAR:
        return f"never, it would be over {FAR:.0f} × its last milestone"
    far = f" (extrapolated to {number(beyond, 2)} × its last milestone)" if beyond > 1 else ""
    return f"{_step(meeting.step)}{far}"


def ends(found: Found, meeting: Meeting) -> str:
    """Return the interval of a step of equal loss for a reader."""
    if math.isnan(meeting.low):
        return "not enough data"
    low, high = ("never" if math.isinf(end) else _step(end) for end in (meeting.low, meeting.high))
    before = "≤ " if meeting.low <= found.start * 1.0001 else ""
    return f"{before}{low}" if low == high else f"[{before}{low}, {high}]"


def _step(step: float) -> str:
    return f"{float(f'{step:.2g}'):,.0f}"


def _between(value: float, low: float, high: float) -> str:
    """Return a value with its interval, as HTML."""
    known = not math.isnan(low)
    between = f"[{number(low, 2)}, {number(high, 2)}]" if known else "[not enough data]"
    return f'{number(value, 2)} <span class="note">{between}</span>'


def law_figure(measured: Measurements, found: Found, *, name: str) -> Drawn:
    """Draw the runs of a quantity over steps, its laws with bands, and the steps of equal loss."""
    fit = found.fit
    assert fit is not None
    metric, points = found.asked.metric, found.asked.table
    last = float(np.exp(fit.curves.last.max()))
    meetings = [fit.equal(size, size + 1) for size in range(len(found.sizes) - 1)]
    near = [m.step for m in meetings if found.start <= m.step <= _MOST * last]
    right = max([_LEAST * last, *(1.2 * step for step in near)])
    rows: list[dict[str, Any]] = [
        {"kind": "measured", **row} for row in points[["run_id", "model", "step", "value"]].to_dict("records")
    ]
    with matplotlib.rc_context(RC):
        drawing, [axes] = panels(1, height=3.3)
        heights = list(points["value"])
        for size, model in enumerate(found.sizes):
            colour = series(measured.sizes.index(model))
            places = np.linspace(np.log(found.start), np.log(right), _PLACES)
            values = fit.law.at(size, places)
            low, high = fit.at(size, places)
            steps, inside = np.exp(places), places <= fit.curves.last[size] + 1e-9
            # On a log axis a band that reaches zero would have no end.
            axes.fill_between(steps, np.maximum(low, values / 3), high, color=colour, alpha=0.15, linewidth=0)
            dash = DASHES[measured.variants.index(found.asked.variant) % len(DASHES)]
            axes.plot(steps[inside], values[inside], color=colour, linestyle=dash)
            axes.plot(steps[~inside], values[~inside], color=colour, linestyle=dash, linewidth=0.9, alpha=0.7)
            heights += list(np.fmax(low, values / 2))
            bands = zip(steps, values, low, high, strict=True)
            rows += [
                {"kind": "law", "model": model, "step": s, "value": v, "low": a, "high": b}
                for s, v, a, b in bands
            ]
        _points(axes, measured, found)
        axes.axvline(last, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        told = []
        for size, meeting in enumerate(meetings):
            told.append(_sentence(found, size, meeting))
            met = {"kind": "equal loss", "model": found.sizes[size], "value": _target(found, size + 1)}
            rows.append(met | vars(meeting))
            if meeting.step in near:
                _meet(axes, measured, found, size, meeting, right)
        log_axis(axes.yaxis, heights)
        log_axis(axes.xaxis, [*points["step"].astype(float), right], count)
        axes.set(xlabel="training steps", ylabel=metric.label)
    exponent, least, most = fit.exponent
    within = f" [{number(least, 2)}, {number(most, 2)}]" if fit.sure else ""
    text = (
        f"{metric.label} over training steps on log axes, with laws of exponent {number(exponent, 2)}{within}"
    )
    data = pd.DataFrame(rows, columns=["kind", "run_id", "model", "step", "value", "low", "high"])
    return Drawn(drawing, name, ". ".join([text, *told]), data)


def _points(axes: Axes, measured: Measurements, found: Found) -> None:
    """Draw the checkpoints, filled where the law is fitted to them."""
    metric, points = found.asked.metric, found.asked.table
    for size, part in points.groupby("model", sort=False):
        index = measured.sizes.index(str(size))
        fitted = (part["step"] >= found.start) & (str(size) in found.sizes)
        for chosen, fill in ((part[fitted], series(index)), (part[~fitted], "none")):
            axes.plot(
                chosen["step"], chosen["value"], linestyle="none", marker=MARKERS[index % len(MARKERS)],
                markersize=3.5, markerfacecolor=fill, markeredgecolor=series(index), markeredgewidth=0.9,
            )  # fmt: skip
    runs = measured.checkpoints.loc[points.index]
    texts = [
        f"{named_run(run)} · step {run['step']:,}\n{metric.label}: {number(value)}"
        for run, value in zip(runs.to_dict("records"), points["value"], strict=True)
    ]
    hover(axes, points["step"], points["value"], texts)


def _meet(
    axes: Axes, measured: Measurements, found: Found, size: int, meeting: Meeting, right: float
) -> None:
    """Draw a step of equal loss: from the larger size at its last milestone to the smaller one."""
    assert found.fit is not None
    value, colour = _target(found, size + 1), series(measured.sizes.index(found.sizes[size]))
    other = float(np.exp(found.fit.curves.last[size + 1]))
    axes.plot([other, meeting.step], [value, value], color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
    if found.fit.sure:
        axes.plot(
            [meeting.low, min(meeting.high, 2 * right)],
            [value, value],
            color=colour,
            linewidth=2.2,
            alpha=0.4,
        )
    axes.plot(
        [meeting.step],
        [value],
        color=colour,
        linestyle="none",
        marker="*",
        markersize=10,
        markeredgecolor=INK,
        markeredgewidth=0.7,
        zorder=4,
    )
    hover(axes, [meeting.step], [value], [_sentence(found, size, meeting)])


def _sentence(found: Found, size: int, meeting: Meeting) -> str:
    """Return a step of equal loss as a sentence without its full stop."""
    assert found.fit is not None
    larger, last = found.sizes[size + 1], np.exp(found.fit.curves.last[size + 1])
    return (
        f"{found.sizes[size]} reaches the {number(_target(found, size + 1))} {found.asked.metric.unit} that "
        f"{larger} has at step {last:,.0f}: {when(found, size, meeting)}, interval {ends(found, meeting)}"
    )
