"""The page: one HTML file that needs no network, no script and no other file.

`render` is a pure function of its content: the same content gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from urllib.parse import quote

import pandas as pd

from raysweep.evaluation.excess_loss import ENTROPY
from raysweep.report import tables
from raysweep.report.association import DENSE, STRATA
from raysweep.report.best import Best
from raysweep.report.claims import verdicts
from raysweep.report.claims_section import claims_section
from raysweep.report.columns import PAIRED
from raysweep.report.contest import contest_section
from raysweep.report.contrasts import Change
from raysweep.report.correlations import Correlations, correlations
from raysweep.report.curves import runs_along_training, training_curves
from raysweep.report.damage import DRAWN, damage_sections
from raysweep.report.data import MANY, Failure, Measurements, measurements, threshold
from raysweep.report.figures import across_sizes, along_training, scatter
from raysweep.report.format import number
from raysweep.report.headline import comparable, headline, legend
from raysweep.report.laws_section import laws_section
from raysweep.report.many import EXACT
from raysweep.report.parts import capital, download, figure, folded, section, small
from raysweep.report.sample import evenly
from raysweep.report.style import style_sheet
from raysweep.report.summary import Summary, summary
from raysweep.report.theory import theory_figures
from raysweep.report.transfer import Diverged, curve_section, finetune_section
from raysweep.report.verdict import Verdict
from raysweep.sweep.claims import TOLERANCE, Questions
from raysweep.training.checkpoint import CurvePoint

#: Most rows of the table of the last milestone of a sweep of many runs.
ROWS = 300


@dataclass(frozen=True, kw_only=True)
class Content:
    """The content of a report.

    `frame` is the tidy table, `milestones` are the steps at which each run is measured (for a report in
    mid-sweep), `best` the tables of its searches, `changes` the changes of the trace between milestones,
    `diverged` the cells of fine-tuning that did so, and `kinds` the kinds of the sweep's evaluations.
    `verdicts` are those on the sweep's claims; None is those on the usual ones, with losses as independent
    numbers.  `remarks` are lines on the way of measuring.  A checkpoint counts as saturated up to
    `tolerance` above the least possible loss, in nats.  `curves` are the training curves and `links` the
    addresses of logs and other pages, by name, of each run.  `provenance` and `commands` are shown as they
    are, name beside value.  `measured` are the measurements of the frame, where they have been made already.
    Of many runs (`Measurements.many`), `curves`, `changes` and `links` may be those of the drawn ones alone,
    and `table` is the name of a file beside the page that holds the tidy table.
    """

    name: str
    frame: pd.DataFrame
    description: str = ""
    milestones: Mapping[str, Sequence[int]] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    diverged: Sequence[Diverged] = ()
    best: Sequence[Best] = ()
    changes: Sequence[Change] = ()
    kinds: Collection[str] = ()
    verdicts: Sequence[Verdict] | None = None
    remarks: Sequence[str] = ()
    tolerance: float = TOLERANCE
    curves: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    measured: Measurements | None = None
    table: str = ""


def render(content: Content) -> str:
    """Return the page: what was found, the figures at equal loss, and the rest folded."""
    whole = content.measured or measurements(content.frame)
    measured = whole.shortly()
    drawn = measured.drawn
    rows = correlations(measured, tolerance=content.tolerance)
    found = content.verdicts
    if found is None:
        found = verdicts(measured, Questions(tolerance=content.tolerance))
    metrics = [metric.name for metric in measured.shown() if metric.quantity not in DRAWN]
    theory = _theory(content, drawn)
    # A sweep of the theory alone asks nothing about accuracy.
    asked = bool(measured.shown("accuracy")) or not theory
    accuracy = [
        section("At the last milestone", tables.variants_table(_last(content, whole)), fold=False),
        _steps_and_sizes(drawn, metrics),
        curve_section(drawn),
        finetune_section(drawn, content.diverged),
        damage_sections(drawn),
        laws_section(drawn, content.name),
        section("What goes with accuracy", _what_goes(content, measured, rows)),
        contest_section(measured, content.name),
        _flatness(content, drawn),
        section("Tasks", tables.task_table(measured)),
    ]
    runs = ""
    if asked or measured.runs:
        failed = {failure.run_id for failure in content.failures if not failure.retried}
        known = set(drawn.checkpoints["run_id"])
        milestones = {
            run: steps for run, steps in content.milestones.items() if run in known or not drawn.sample
        }
        runs = tables.run_table(drawn, milestones, failed, content.links)
    searched = "".join(map(tables.best_table, content.best))
    parts = [
        f"<h1>{escape(content.name)}</h1>",
        f'<p class="lead">{escape(content.description)}</p>' if content.description else "",
        claims_section(found, measured, content.name, rows) if asked else "",
        facts(content, measured) if asked or measured.runs else "",
        _sampled(content, measured),
        section("Search", searched, fold=False),
        section("Failures", _failures(content, measured), fold=False),
        headline(drawn, name=content.name, tolerance=content.tolerance, awaited="trace" in content.kinds)
        if asked
        else legend(drawn, content.tolerance),
        theory,
        *(accuracy if asked else [_flatness(content, drawn)]),
        _training(content, drawn),
        section("Runs", runs),
        _sources(content, measured),
    ]
    return page(content.name, "\n".join(part for part in parts if part), len(drawn.sizes))


def _sampled(content: Content, measured: Measurements) -> str:
    """Return what of many runs a page shows, and how its numbers were computed; "" for few."""
    if not measured.many:
        return ""
    drawn = measured.drawn
    told = (
        f"The sweep has {measured.runs:,} runs. Verdicts, correlations and the table of the last milestone "
        f"are of all of them. Figures, power laws, changes between milestones and the table of runs have "
        f"{drawn.runs:,} of them, evenly spaced among the settings and the same ones each time: "
        f"{len(drawn.checkpoints):,} of {len(measured.checkpoints):,} checkpoints."
    )
    if len(measured.checkpoints) > DENSE:
        told += (
            f" With more than {EXACT} clusters, intervals are those of Student's t with the degrees of "
            f"freedom of the standard error (Satterthwaite). There are at most {STRATA} strata of loss, and "
            f"of more than {PAIRED:,} checkpoints a sample is compared in pairs."
        )
    return small(told)


def _failures(content: Content, measured: Measurements) -> str:
    """Return the table of failures, of many runs the first of them."""
    if not content.failures:
        return ""
    shown = content.failures[:MANY] if measured.many else content.failures
    left = len(content.failures) - len(shown)
    return tables.failure_table(shown) + (small(f"And {left:,} more.") if left else "")


def _last(content: Content, measured: Measurements) -> Summary:
    """Return the table of the last milestone, of many configurations some that are evenly spaced."""
    found = summary(content.frame, measured)
    if not measured.many or len(found.rows) <= ROWS:
        return found
    rows = [found.rows[place] for place in evenly(len(found.rows), ROWS)]
    return replace(
        found, rows=rows, title=f"{found.title}; {ROWS} of {len(found.rows):,} rows, evenly spaced"
    )


def page(title: str, body: str, sizes: int, *ramps: int) -> str:
    """Return a whole page with a style sheet for so many sizes of models, and for parts with others."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)} · raysweep</title>\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style_sheet(sizes, *ramps)}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def facts(content: Content, measured: Measurements) -> str:
    """Return how far a sweep is, and what it has in numbers, as a list."""
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


def _theory(content: Content, measured: Measurements) -> str:
    parts, frame = [], content.frame
    if measured.sample:
        frame = frame[frame["run_id"].isin(set(measured.checkpoints["run_id"]))]
    for name, drawn, heading, caption in theory_figures(frame, measured):
        shown = figure(drawn, f"{content.name}-{name}.csv", caption)
        parts.append(section(heading, f'<div class="pair">{shown}</div>', fold=False))
    return "\n".join(parts)


def _what_goes(content: Content, measured: Measurements, rows: list[Correlations]) -> str:
    """Return the correlations, and the figures of all checkpoints where the headline has those of a band.

    "" where no flatness has been measured.
    """
    if not measured.shown("flatness"):
        return ""
    figures = []
    for place, accuracy in enumerate(measured.shown("accuracy")):
        for x in measured.shown("flatness"):
            if not comparable(measured.drawn, x, accuracy, content.tolerance):
                continue
            name = f"all-{place}-{x.name}"
            shown = measured.drawn
            drawn = scatter(shown, x.name, accuracy.name, tolerance=content.tolerance, name=name)
            if drawn is not None:
                file = f"{content.name}-{measured.named(accuracy)}-{x.name}-all.csv"
                figures.append(figure(drawn, file, f"{capital(x.title)}, all checkpoints."))
    drawn_all = f'<div class="pair">{"".join(figures)}</div>' if figures else ""
    return tables.correlation_table(rows, content.tolerance) + drawn_all


def _flatness(content: Content, measured: Measurements) -> str:
    """Return flatness along the training of each run, with the table of its changes folded."""
    figures = []
    for metric in measured.shown("flatness"):
        drawn = runs_along_training(measured, metric, name=f"runs-{metric.name}")
        if drawn is not None:
            caption = (
                f"{capital(metric.title)} of every run over training steps; bars are 95 % intervals over the "
                "inputs. Hollow: the interval is not trusted, because few inputs or a few very large values "
                "make it."
            )
            figures.append(figure(drawn, f"{content.name}-{metric.name}-runs.csv", caption))
    body = f'<div class="pair">{"".join(figures)}</div>' if figures else ""
    if content.changes:
        told = f"The trace between milestones, {len(content.changes)} differences"
        body += folded(told, tables.change_table(content.changes, measured.names), printed=False)
    return section("Flatness along training", body)


def _training(content: Content, measured: Measurements) -> str:
    curves = content.curves
    if measured.sample:
        curves = {
            run_id: curves[run_id] for run_id in measured.checkpoints["run_id"].unique() if run_id in curves
        }
    drawn = training_curves(measured, curves)
    if drawn is None:
        return ""
    caption = "A line is a run, in the colour of its size. Each point is the mean since the one before."
    shown = figure(drawn, f"{content.name}-curves.csv", caption)
    return section("Training curves", f'<div class="pair">{shown}</div>')


def _steps_and_sizes(measured: Measurements, metrics: Sequence[str]) -> str:
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
    return section("Along training and across sizes", f'<div class="pair">{left}{right}</div>')


def _sources(content: Content, measured: Measurements) -> str:
    commands = "".join(
        f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in content.commands.items()
    )
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in content.provenance.items())
    if content.table:
        link = f'<a href="{escape(quote(content.table))}">{escape(content.table)}</a>, beside this page'
    elif measured.many:
        link = "by the command above"
    else:
        link = download(content.frame, f"{content.name}.csv")
    table = f"<dt>all measurements</dt><dd>{link} ({len(content.frame):,} rows)</dd>"
    said = "".join(f"<dt>measured</dt><dd>{escape(line)}</dd>" for line in content.remarks)
    return section("Where this comes from", f"<dl>{commands}{table}{said}{facts}</dl>")
