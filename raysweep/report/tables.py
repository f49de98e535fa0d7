"""The tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from raysweep.report.correlations import LEAST_CHECKPOINTS, LEAST_RUNS, LEAST_RUNS_INTERVAL, Correlations
from raysweep.report.data import HEADINGS, LOSSES, PROBE, Measurements
from raysweep.report.format import count, number, plus_minus, short, signed
from raysweep.report.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.report.contrasts import Change
    from raysweep.report.page import Failure


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1, wrap: int | None = None
) -> str:
    """Return a table of cells that are HTML; the first `text` columns are text, the others numbers."""

    def cells(tag: str, values: Sequence[str]) -> str:
        made = []
        for place, value in enumerate(values):
            kinds = (["text"] if place < text or place == wrap else []) + (["wrap"] if place == wrap else [])
            kind = f' class="{" ".join(kinds)}"' if kinds else ""
            made.append(f"<{tag}{kind}>{value}</{tag}>")
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    head = cells("th", headings)
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def correlation_table(rows: Sequence[Correlations], tolerance: float) -> str:
    """Return the rank correlations with accuracy, with their intervals."""
    note = (
        "Spearman rank correlation with probe accuracy and its 95 % interval from 2,000 draws of whole runs "
        f"(cluster bootstrap). Saturated: excess loss at most {short(tolerance)} nats. A correlation takes "
        f"at least {LEAST_CHECKPOINTS} checkpoints of {LEAST_RUNS} runs, an interval {LEAST_RUNS_INTERVAL} "
        "runs; with few runs such intervals are somewhat too narrow."
    )
    if not rows:
        return '<p class="note">Not enough data: no probe accuracy has been measured.</p>'
    headings = ["task", "checkpoints", "n", "runs", "excess loss", "trace", "trace, given excess loss"]
    cells = [
        [
            *(escape(row.task), row.band, str(row.checkpoints), str(row.runs)),
            *(_interval(i) for i in (row.excess_loss, row.trace, row.trace_given_loss)),
        ]
        for row in rows
    ]
    return table(headings, cells, text=2) + f'<p class="note">{note}</p>'


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return '<span class="note">not enough data</span>'
    if interval.low is None or interval.high is None:
        return f'{signed(interval.value)} <span class="note">[not enough data]</span>'
    between = f"[{signed(interval.low)}, {signed(interval.high)}]"
    return f'{signed(interval.value)} <span class="note">{between}</span>'


def change_table(changes: Sequence[Change]) -> str:
    """Return how the trace changes between milestones, with the intervals of paired differences."""
    note = (
        "Difference of the trace in nats between milestones of a run, and its 95 % interval. Both are "
        "measured on the same inputs with the same test vectors, so the interval is that of the inputs' own "
        "differences, over the inputs that both milestones have; the last column says how many times as many "
        "inputs it would take without the pairing. Intervals are single ones: about one in twenty "
        "misses; “falls” and “rises” are corrected for the number of rows (Holm): with a probability of "
        "95 % none of them is wrong, so a row may say “no clear change” though its interval leaves out zero. "
        "Where single inputs or a long tail make up a difference its interval is not trusted, and nothing is "
        "said of its direction."
    )
    rows = []
    for change in changes:
        low, high = change.interval
        gain = (change.independent / change.standard_error) ** 2 if change.standard_error > 0 else None
        rows.append(
            [
                f"<code>{escape(change.run_id)}</code>",
                f"{change.before:,} → {change.after:,}",
                f'{signed(change.difference)} <span class="note">[{signed(low)}, {signed(high)}]</span>',
                _direction(change),
                f"{change.n:,}",
                number(gain),
            ]
        )
    headings = ["run", "steps", "change of the trace", "which", "inputs", "gain by pairing"]
    return f'<p class="note">{note}</p>' + table(headings, rows, text=2, wrap=3)


def _direction(change: Change) -> str:
    if change.warning is not None:
        return f'<span class="warn">not trusted</span>: {escape(change.warning)}'
    if not change.told:
        return '<span class="note">no clear change</span>'
    return "falls" if change.difference < 0 else "rises"


def task_table(measured: Measurements) -> str:
    """Return what each probe task amounts to: majority's share, look-up table, best checkpoint."""
    if not measured.tasks:
        return '<p class="note">Not enough data: no probe accuracy has been measured.</p>'
    rows = []
    for task in measured.tasks:
        known = measured.has(PROBE + task)
        best = known.loc[known[PROBE + task].idxmax()] if len(known) else None
        rows.append(
            [
                escape(task),
                number(measured.majority.get(task)),
                number(measured.reference.get(PROBE + task)),
                "–" if best is None else plus_minus(best[PROBE + task], best[f"{PROBE}{task}_se"]),
                "–" if best is None else f"{escape(str(best['run_id']))} at step {best['step']:,}",
            ]
        )
    headings = ["task", "majority label", "look-up table", "best checkpoint", "which"]
    return table(headings, rows, wrap=4)


def run_table(measured: Measurements, milestones: Mapping[str, Sequence[int]], failed: set[str]) -> str:
    """Return a row per run: its last measured checkpoint, value ± standard error, and how far it has come."""
    checkpoints = measured.checkpoints
    known = set(checkpoints["run_id"])
    waiting = [run for run, steps in milestones.items() if run not in known and tuple(steps) != (0,)]
    if not known and not waiting:
        return '<p class="note">Not enough data: nothing has been measured yet.</p>'
    metrics = [m for m in (*LOSSES, "trace") if m in checkpoints]
    metrics += [PROBE + task for task in measured.tasks if PROBE + task in checkpoints]
    varied = len(measured.variants) > 1
    rows = []
    for run_id, group in checkpoints.groupby("run_id", sort=False):
        last = group.sort_values("step").iloc[-1]
        asked = milestones.get(str(run_id))
        done = f"{len(group)} of {len(asked)}" if asked else str(len(group))
        state = f'<span class="warn">failed</span>, {done}' if run_id in failed else done
        rows.append(
            [
                f"<code>{escape(str(run_id))}</code>",
                *([escape(str(last["variant"]))] if varied else []),
                *(count(last["parameters"]), state),
                f"{last['step']:,}",
                *(plus_minus(last[m], last[f"{m}_se"]) + _reserve(last, m) for m in metrics),
            ]
        )
    blank = ["–"] * (2 + varied + len(metrics))
    for run_id in waiting:
        state = '<span class="warn">failed</span>' if run_id in failed else "not measured yet"
        cells = [f"<code>{escape(run_id)}</code>", *blank]
        cells.insert(2 + varied, state)
        rows.append(cells)
    names = [HEADINGS.get(m, m.replace(PROBE, "accuracy ")) for m in metrics]
    headings = ["run", *(["variant"] if varied else []), "parameters", "milestones", "step"]
    note = "The last measured checkpoint of each run, ± standard error of the measurement."
    if _TRUSTED in checkpoints and checkpoints[_TRUSTED].eq(0).any():
        note += (
            " The standard error of a trace that is not trusted comes from few inputs, or "
            "from a few very large values."
        )
    return f'<p class="note">{note}</p>' + table([*headings, *map(escape, names)], rows, text=1 + varied)


_TRUSTED, _REACHED = "trace_interval_trusted", "trace_target_reached"


def _reserve(checkpoint: pd.Series, metric: str) -> str:
    """Return what a reader is to know of a trace's standard error, as HTML; "" where there is nothing."""
    if metric != "trace":
        return ""
    found = [(_TRUSTED, "not trusted"), (_REACHED, "target not reached")]
    said = [text for name, text in found if name in checkpoint and checkpoint[name] == 0]
    return f' <span class="warn">{", ".join(said)}</span>' if said else ""


def failure_table(failures: Sequence[Failure]) -> str:
    """Return what went wrong, run by run."""
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
