"""The page: one HTML file that needs no network, no script and no other file.

`render` is a pure function of its content: the same content gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import pandas as pd

from raysweep.evaluation.excess_loss import ENTROPY
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.report import tables
from raysweep.report.claims import verdicts
from raysweep.report.claims_section import claims_section
from raysweep.report.contest import contest_section
from raysweep.report.contrasts import Change
from raysweep.report.correlations import correlations
from raysweep.report.damage import DRAWN, damage_sections
from raysweep.report.data import Failure, Measurements, measurements, threshold
from raysweep.report.figures import across_sizes, along_training, marker_svg, scatter
from raysweep.report.format import count, number
from raysweep.report.parts import capital, download, figure, small
from raysweep.report.style import style_sheet
from raysweep.report.theory import theory_figures
from raysweep.report.transfer import Diverged, curve_section, finetune_section
from raysweep.report.verdict import Verdict
from raysweep.sweep.claims import TOLERANCE, Questions


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a report.

    `frame` is the tidy table, `milestones` are the steps at which each run is measured (for a report in
    mid-sweep), `changes` the changes of the trace between them, `diverged` the cells of fine-tuning that did
    so.  `verdicts` are those on the sweep's claims; None is those on the usual ones, with losses as
    independent numbers.  `remarks` are lines on the way of measuring.  A checkpoint counts as saturated up to
    `tolerance` above the least possible loss, in nats.  `provenance` and `commands` are shown as they are,
    name beside value.
    """

    name: str
    frame: pd.DataFrame
    description: str = ""
    milestones: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    diverged: Sequence[Diverged] = ()
    changes: Sequence[Change] = ()
    verdicts: Sequence[Verdict] | None = None
    remarks: Sequence[str] = ()
    tolerance: float = TOLERANCE
    provenance: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)


def render(content: Content) -> str:
    """Return the page."""
    measured = measurements(content.frame)
    rows = correlations(measured, tolerance=content.tolerance)
    found = content.verdicts
    if found is None:
        found = verdicts(measured, Questions(tolerance=content.tolerance))
    metrics = [metric.name for metric in measured.shown() if metric.quantity not in DRAWN]
    theory = _theory(content, measured)
    accuracy = [
        _headline(content, measured),
        _steps_and_sizes(measured, metrics),
        curve_section(measured),
        finetune_section(measured, content.diverged),
        damage_sections(measured),
        "<h2>What goes with accuracy</h2>",
        tables.correlation_table(rows, content.tolerance),
        contest_section(measured, content.name),
        _changes(content.changes),
        "<h2>Tasks</h2>",
        tables.task_table(measured),
    ]
    # A sweep of the theory alone asks nothing about accuracy.
    asked = bool(measured.shown("accuracy")) or not theory
    parts = [
        f"<h1>{escape(content.name)}</h1>",
        f'<p class="lead">{escape(content.description)}</p>' if content.description else "",
        _facts(content, measured) if asked or measured.runs else "",
        claims_section(found) if asked else "",
        _legend(measured, content.tolerance),
        theory,
        *(accuracy if asked else [_changes(content.changes)]),
        "<h2>Runs</h2>" if asked or measured.runs else "",
        tables.run_table(measured, content.milestones, {f.run_id for f in content.failures if not f.retried})
        if asked or measured.runs
        else "",
        _failures(content.failures),
        _sources(content),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(content.name)} · raysweep</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style_sheet(len(measured.sizes))}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _facts(content: Content, measured: Measurements) -> str:
    table = measured.checkpoints
    expected = {run_id: steps for run_id, steps in content.milestones.items() if tuple(steps) != (0,)}
    of_runs = f" of {len(expected)}" if expected else ""
    total = sum(len(steps) for steps in expected.values())
    of_checkpoints = f" of {total}" if total else ""
    facts = [
        (f"{measured.runs}{of_runs}", "runs measured"),
        (f"{len(table)}{of_checkpoints}", "checkpoints measured"),
    ]
    if measured.saturating is not None:
        saturated = int(measured.saturated(table, content.tolerance).sum())
        most = threshold(measured.saturating, content.tolerance)
        facts.append((str(saturated), f"saturated: {measured.saturating.title} ≤ {most}"))
    entropy = measured.means.get(ENTROPY.name)
    if entropy is not None:
        facts.append((f"{number(entropy, 4)} {ENTROPY.unit}", "entropy: the least possible loss"))
    failed = sum(not failure.retried for failure in content.failures)
    if failed:
        facts.append((str(failed), "failed runs" if failed > 1 else "failed run"))
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in facts)
    return f'<ul class="facts">{items}</ul>'


def _legend(measured: Measurements, tolerance: float) -> str:
    if not measured.sizes:
        return ""
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    items = [
        f"<li>{marker_svg(index)}{escape(size)} ({count(parameters[size])} parameters)</li>"
        for index, size in enumerate(measured.sizes)
    ]
    if len(measured.variants) > 1:
        items += [
            f"<li>{marker_svg(None, dash=dash)}{escape(variant)}</li>"
            for dash, variant in enumerate(measured.variants)
        ]
    if any(metric.name in measured.reference for metric in measured.shown("accuracy")):
        items.append(f"<li>{marker_svg(None)}look-up table: the exact conditionals themselves</li>")
    loss = measured.saturating
    if loss is not None:
        above = f"{loss.title} above {threshold(loss, tolerance)}"
        items.append(f"<li>filled: saturated, hollow: {escape(above)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _theory(content: Content, measured: Measurements) -> str:
    parts = []
    for name, drawn, heading, caption in theory_figures(content.frame, measured):
        shown = figure(drawn, f"{content.name}-{name}.csv", caption)
        parts.append(f'<h2>{escape(heading)}</h2><div class="pair">{shown}</div>')
    return "\n".join(parts)


def _headline(content: Content, measured: Measurements) -> str:
    titles = [metric.title for metric in measured.shown("loss", "flatness")] or ["loss", "flatness"]
    head = f"<h2>{escape(capital(', '.join(titles)))} and accuracy</h2>"
    figures = []
    for place, accuracy in enumerate(measured.shown("accuracy")):
        named = measured.named(accuracy)
        for kind in ("loss", "flatness"):
            against = measured.shown(kind)
            if not against:
                figures.append(small(capital(f"{accuracy.title}, against {kind}: not enough data.")))
            for x in against:
                name = f"headline-{place}-{x.name}"
                drawn = scatter(measured, x.name, accuracy.name, tolerance=content.tolerance, name=name)
                if drawn is None:
                    against_x = f"{accuracy.title}, against {x.title}: not enough data."
                    figures.append(small(capital(against_x)))
                else:
                    figures.append(figure(drawn, f"{content.name}-{named}-{x.name}.csv", ""))
    if not figures:
        return head + small("Not enough data: no accuracy has been measured.")
    said = "A dot is a checkpoint."
    loss = measured.saturating
    if loss is not None:
        most = threshold(loss, content.tolerance)
        said += f" The shaded band is where {loss.title} is at most {most}."
    said += (
        " Bars are one standard error of the measurement: over the evaluation sentences for a loss, over the "
        f"inputs for a trace, over seeds for an accuracy.{_spaces(measured)}"
    )
    return f'{head}{small(said)}<div class="pair">{"".join(figures)}</div>'


def _spaces(measured: Measurements) -> str:
    """Return a sentence on the parameters of the traces that a page compares, "" for models of one size."""
    names = [metric.name for metric in measured.comparable()]
    if ENLARGED.name in names:
        return (
            f" The {ENLARGED.heading} is that of each model seen as one of a shape that holds all of them, "
            "so it compares models of different size."
        )
    if TRACE.name not in names or measured.one_space:
        return ""
    return (
        " The trace is that of each model in its own parameters; models of different size are not viewed as "
        "one architecture."
    )


def _steps_and_sizes(measured: Measurements, metrics: Sequence[str]) -> str:
    head = "<h2>Along training and across sizes</h2>"
    steps = along_training(measured, metrics, name="steps")
    sizes = across_sizes(measured, metrics, name="sizes")
    left = (
        figure(
            steps, "steps.csv", "Over training steps: mean over seeds, bars ± one standard error over seeds."
        )
        if steps is not None
        else small("Over training steps: not enough data.")
    )
    right = (
        figure(
            sizes[0],
            "sizes.csv",
            f"Over parameters, at step {sizes[1]:,}, the last that all sizes have reached: mean over seeds, "
            "bars ± one standard error over seeds.",
        )
        if sizes is not None
        else small("Over parameters: not enough data; it takes two sizes measured at one step.")
    )
    return f'{head}<div class="pair">{left}{right}</div>'


def _changes(changes: Sequence[Change]) -> str:
    if not changes:
        return ""
    return "<h2>The trace between milestones</h2>" + tables.change_table(changes)


def _failures(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    return "<h2>Failures</h2>" + tables.failure_table(failures)


def _sources(content: Content) -> str:
    commands = "".join(
        f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in content.commands.items()
    )
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in content.provenance.items())
    link = download(content.frame, f"{content.name}.csv")
    table = f"<dt>all measurements</dt><dd>{link} ({len(content.frame):,} rows)</dd>"
    said = "".join(f"<dt>measured</dt><dd>{escape(line)}</dd>" for line in content.remarks)
    return f"<h2>Where this comes from</h2><dl>{commands}{table}{said}{facts}</dl>"
