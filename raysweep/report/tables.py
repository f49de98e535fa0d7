"""The tables of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape, unescape
from typing import TYPE_CHECKING

from raysweep.evaluation.metric import NOT_TRUSTED, error_key
from raysweep.report.correlations import LEAST_CHECKPOINTS, LEAST_RUNS, Correlations
from raysweep.report.data import Failure, Measurements, named_run
from raysweep.report.format import count, number, plus_minus, short, signed
from raysweep.report.statistics import Interval
from raysweep.report.style import TABLE_WIDTHS

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.report.best import Best
    from raysweep.report.contrasts import Change
    from raysweep.report.summary import Summary


#: Pixels of a character of a table and between two columns, as the style sheet has them; characters of a
#: column of long text, and of an id, which may break.
_CHARACTER, _BETWEEN, _LONG, _ID = 7.9, 14, 24, 16


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1, wrap: int | tuple[int, ...] = ()
) -> str:
    """Return a table of cells that are HTML; the first `text` columns are text, the others numbers.

    The columns `wrap` hold long text, which may break.

    Where a page is too narrow for it, each row becomes a paragraph in which every number has its heading.
    """

    wrapping = (wrap,) if isinstance(wrap, int) else wrap

    def cells(tag: str, values: Sequence[str]) -> str:
        made = []
        for place, (heading, value) in enumerate(zip(headings, values, strict=True)):
            kinds = (["text"] if place < text or place in wrapping else []) + (
                ["wrap"] if place in wrapping else []
            )
            # Where rows are paragraphs, what is not known is left out.
            kinds += ["absent"] if tag == "td" and value == "–" else []
            kind = f' class="{" ".join(kinds)}"' if kinds else ""
            head = f' data-head="{heading}"' if tag == "td" else ""
            made.append(f"<{tag}{kind}{head}>{value}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    needed = sum(_needed(k in wrapping, head, [row[k] for row in rows]) for k, head in enumerate(headings))
    room = next((width for width in TABLE_WIDTHS if needed <= width), None)
    kind = "paragraphs" if room is None else f"from-{room}"
    head = cells("th", headings)
    return f'<div class="fit"><table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _needed(wraps: bool, heading: str, column: Sequence[str]) -> float:
    """Return about how many pixels a column of a table takes; the words of its heading may break."""
    # An id may break.
    texts = [unescape(re.sub(r"<code>.*?</code>|<[^>]*>", "", cell)) for cell in column]
    ids = _ID if any("<code>" in cell for cell in column) else 0
    longest = max([ids, *map(len, texts), *map(len, unescape(heading).split())])
    if wraps:
        longest = min(longest, _LONG)
    return _CHARACTER * longest + _BETWEEN


def correlation_table(rows: Sequence[Correlations], tolerance: float) -> str:
    """Return the rank correlations with accuracy, with their intervals."""
    note = (
        "Spearman rank correlation with accuracy and its 95 % interval: below zero, less of it goes with "
        "more accuracy; “given” is at equal loss, by a "
        "smooth function of its rank. Runs that differ in their seed alone count as one configuration: "
        "what is peculiar to it shifts all of them. Intervals are cluster-robust (CR2, Bell and McCaffrey). "
        f"Saturated: at most {short(tolerance)} nats above the least possible loss. A "
        f"correlation takes at least {LEAST_CHECKPOINTS} checkpoints of {LEAST_RUNS} runs."
    )
    if not rows:
        return '<p class="note">Not enough data: loss, flatness and accuracy have not all been measured.</p>'
    tables = []
    for loss, flatness in dict.fromkeys((row.loss.title, row.flatness.title) for row in rows):
        headings = [
            "task",
            "checkpoints",
            "n",
            "runs",
            "configurations",
            loss,
            flatness,
            f"{flatness}, given {loss}",
        ]
        cells = [
            [
                *(escape(row.task), row.band),
                *(str(n) for n in (row.checkpoints, row.runs, row.configurations)),
                *(_interval(i) for i in (row.of_loss, row.of_flatness, row.of_flatness_given_loss)),
            ]
            for row in rows
            if (row.loss.title, row.flatness.title) == (loss, flatness)
        ]
        tables.append(table([*map(escape, headings)], cells, text=2))
    return "".join(tables) + f'<p class="note">{note}</p>'


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return '<span class="note">not enough data</span>'
    if interval.low is None or interval.high is None:
        return f'{signed(interval.value)} <span class="note">[not enough data]</span>'
    between = f"[{signed(interval.low)}, {signed(interval.high)}]"
    return f'{signed(interval.value)} <span class="note">{between}</span>'


def change_table(changes: Sequence[Change], names: Mapping[str, str]) -> str:
    """Return the changes of the trace between milestones, with the intervals of paired differences.

    `names` are those of the runs for a reader, by run id.
    """
    note = (
        "Difference of the trace in nats between milestones of a run, always in the model's own parameters, "
        "and its 95 % interval. Both are measured on the same inputs with the same test vectors, so the "
        "interval is that of the inputs' own differences, over the inputs that both milestones have. The "
        "last column says how many times as many inputs it would take without the pairing. Each interval "
        "stands alone: about one in twenty misses. “falls” and “rises” are corrected for the number of rows "
        "(Holm): with a probability of 95 % none of them is wrong, so a row may be “no clear change” "
        "although its interval does not contain zero. Where single inputs or a long tail make up a "
        "difference, its interval is not trusted, and the table gives no direction."
    )
    rows = []
    for change in changes:
        low, high = change.interval
        gain = (change.independent / change.standard_error) ** 2 if change.standard_error > 0 else None
        rows.append(
            [
                escape(names.get(change.run_id, change.run_id)),
                f"{change.before:,} → {change.after:,}",
                f'{signed(change.difference)} <span class="note">[{signed(low)}, {signed(high)}]</span>',
                _direction(change),
                f"{change.n:,}",
                number(gain),
            ]
        )
    headings = ["run", "steps", "change of the trace", "direction", "inputs", "gain by pairing"]
    return f'<p class="note">{note}</p>' + table(headings, rows, text=2, wrap=3)


def _direction(change: Change) -> str:
    if change.warning is not None:
        return f'<span class="warn">not trusted</span>: {escape(change.warning)}'
    if not change.significant:
        return '<span class="note">no clear change</span>'
    return "falls" if change.difference < 0 else "rises"


def task_table(measured: Measurements) -> str:
    """Return each accuracy's references: majority's share, look-up table, best possible, best checkpoint."""
    accuracies = measured.shown("accuracy")
    if not accuracies:
        return '<p class="note">Not enough data: no accuracy has been measured.</p>'
    rows = []
    for accuracy in accuracies:
        name = accuracy.name
        known = measured.has(name)
        best = known.loc[known[name].idxmax()] if len(known) else None
        rows.append(
            [
                escape(measured.named(accuracy)),
                number(measured.means.get(accuracy.baseline or "")),
                plus_minus(measured.reference.get(name), measured.reference_errors.get(name), digits=1),
                number(measured.means.get(accuracy.ceiling or "")),
                "–" if best is None else plus_minus(best[name], best[error_key(name)], digits=1),
                "–" if best is None else f"{escape(named_run(best))} · step {best['step']:,}",
            ]
        )
    headings = ["task", "majority label", "look-up table", "best possible", "best checkpoint", "at"]
    return table(headings, rows, wrap=5)


def variants_table(found: Summary) -> str:
    """Return the table at the end of a launch: sizes and variants as rows, means over seeds."""
    if not found.rows:
        return ""
    rows = [[escape(cell) for cell in row] for row in found.rows]
    note = f'<p class="note">{escape(found.title)}.</p>'
    return table([*map(escape, found.headings)], rows) + note


def best_table(found: Best) -> str:
    """Return the best samples of a search."""
    rows = [[escape(cell) for cell in row] for row in found.rows]
    note = f'<p class="note">{escape(found.title)}.</p>'
    return table([*map(escape, found.headings)], rows, wrap=len(found.headings) - 1) + note


def run_table(
    measured: Measurements,
    milestones: Mapping[str, Sequence[int]],
    failed: set[str],
    links: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a row per run: its last measured checkpoint, value ± standard error, progress and links."""
    checkpoints = measured.checkpoints
    known = set(checkpoints["run_id"])
    waiting = [run for run, steps in milestones.items() if run not in known and tuple(steps) != (0,)]
    if not known and not waiting:
        return '<p class="note">Not enough data: nothing has been measured yet.</p>'
    metrics = [metric for metric in measured.shown() if metric.name in checkpoints]
    rows = []
    for run_id, group in checkpoints.groupby("run_id", sort=False):
        last = group.sort_values("step").iloc[-1]
        asked = milestones.get(str(run_id))
        done = f"{len(group)} of {len(asked)}" if asked else str(len(group))
        state = f'<span class="warn">failed</span>, {done}' if run_id in failed else done
        rows.append(
            [
                _linked(str(run_id), links, measured.names[str(run_id)]),
                *(count(last["parameters"]), state),
                f"{last['step']:,}",
                *(_measured(measured, last, metric.name) for metric in metrics),
            ]
        )
    blank = ["–"] * (2 + len(metrics))
    for run_id in waiting:
        state = '<span class="warn">failed</span>' if run_id in failed else "not measured yet"
        cells = [_linked(run_id, links), *blank]
        cells.insert(2, state)
        rows.append(cells)
    names = [metric.column for metric in metrics]
    headings = ["run", "parameters", "milestones", "step"]
    note = "The last measured checkpoint of each run, ± standard error of the measurement."
    if any(metric.kind == "accuracy" and "task" in metric.of for metric in metrics):
        note += " That of an accuracy is over seeds, on the same test sentences."
    shown = {metric.name for metric in metrics}
    reservations = [text for (_, _, name), text in measured.reservations.items() if name in shown]
    if any(NOT_TRUSTED in text for text in reservations):
        note += (
            " A standard error that is not trusted comes from few inputs, or from values with a few very "
            "large ones."
        )
    return f'<p class="note">{note}</p>' + table([*headings, *map(escape, names)], rows)


def _linked(run_id: str, links: Mapping[str, Mapping[str, str]], name: str = "") -> str:
    """Return a run's name over its id, with its links, as HTML; a run without a name has its id alone."""
    found = links.get(run_id, {}).items()
    shown = "".join(f' <a href="{escape(address)}">{escape(to)}</a>' for to, address in found)
    told = f"{escape(name)}<br>" if name else ""
    return f"{told}<code>{escape(run_id)}</code>{shown}"


def _measured(measured: Measurements, checkpoint: pd.Series, metric: str) -> str:
    """Return a number with its standard error and the reservations on it, as HTML."""
    text = plus_minus(checkpoint[metric], checkpoint[error_key(metric)], digits=1)
    found = measured.reservations.get((str(checkpoint["run_id"]), int(checkpoint["step"]), metric))
    return text if found is None else f'{text} <span class="warn">{escape(found.replace("; ", ", "))}</span>'


def failure_table(failures: Sequence[Failure]) -> str:
    """Return a row per failure."""
    rows = [
        [
            f"<code>{escape(failure.run_id)}</code>",
            "tried again" if failure.retried else '<span class="warn">failed</span>',
            "–" if failure.step is None else f"{failure.step:,}",
            f"{escape(failure.error)}: {escape(failure.message)}",
        ]
        for failure in failures
    ]
    return table(["run", "state", "step", "why"], rows, text=2, wrap=3)
