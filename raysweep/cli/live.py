"""The view of a launch: a live table on a terminal, a line per change in a pipe."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import Counter
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysweep.cli.output import HEARTBEAT, Lines, console
from raysweep.sweep.told import OVER, Told, live_metrics
from raysweep.sweep.units import duration, percent

if TYPE_CHECKING:
    from raysweep.evaluation.metric import Kind, Metric
    from raysweep.sweep.run_state import LaunchState, RunState

STYLES = {
    "done": "green",
    "stopped": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "training": "cyan",
    "evaluating": "cyan",
    "unfinished": "yellow",
}
#: Stages of a run for its count; those in other states wait.
_STAGES = {
    "done": "done",
    "stopped": "done",
    "failed": "failed",
    "cancelled": "cancelled",
    "starting": "running",
    "training": "running",
    "evaluating": "running",
}
#: Formats of the kinds of metrics that need few digits.
_FORMATS: dict[Kind, str] = {"loss": ".4f", "accuracy": ".3f"}


#: Characters of the columns for run, state, step and time, and of that for run alone; for speed and errors,
#: for tokens a second and the share of the peak, for a metric, and between two columns.
_OTHERS, _NAME, _SPEED, _RATES, _COLUMN = 40, 12, 13, 16, 8
_BETWEEN = 2
#: Most metrics that have their whole headings in one line.
_MOST_IN_A_LINE = 5
#: Most characters of a heading in one line.
_LONG = 16

#: Most runs with trouble that the view on a terminal explains.
_MOST_TROUBLES = 3


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else format(value, spec)


def _headings(metrics: list[Metric], *, wide: bool) -> list[str]:
    """Return the headings of metrics: many have a line for each word, few in a narrow table their places.

    A long one has several lines.
    """
    if len(metrics) > _MOST_IN_A_LINE:
        return [metric.narrow.replace(" ", "\n") for metric in metrics]
    places = [metric.place for metric in metrics if metric.place]
    named = wide or len(set(places)) < len(places)
    texts = [metric.narrow if named else metric.place or metric.narrow for metric in metrics]
    return [text if len(text) <= _LONG else fill(text, _LONG // 2) for text in texts]


def _measured(metric: Metric | None, *, wide: bool) -> str:
    """Return a number in the format of its kind; without such a format, a wide table adds the error."""
    if metric is None:
        return ""
    text = format(metric.value, _FORMATS.get(metric.kind, ".4g"))
    if wide and metric.kind not in _FORMATS and metric.standard_error is not None:
        text += f" ±{metric.standard_error:.2g}"
    return text


def runs_table(states: list[RunState], *, width: int, limit: int | None = None, ids: bool = False) -> Table:
    """Return the table of runs, the busiest first where there are more than `limit`.

    There is a column for every metric that asks to be shown live, as far as the width goes.  A table of less
    than 100 columns leaves out speed and standard errors, one of less than 120 tokens a second and the share
    of the peak, which are means over a training.  With `ids` there is a column of ids, of their last parts
    where the whole would leave no room for metrics or for the names of runs.
    """
    order = {
        **{"training": 0, "evaluating": 0, "starting": 1, "failed": 2, "cancelled": 2},
        **{"done": 4, "stopped": 4},
    }
    shown = states
    if limit is not None and len(states) > limit:
        shown = sorted(states, key=lambda state: order.get(state.state, 3))[:limit]
    wide = width >= 100
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("run", overflow="fold", min_width=8)
    if ids:
        table.add_column("id", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=10)
    room = width - _OTHERS - (_SPEED if wide else 0)
    metrics = live_metrics(states)
    names = [state.run_id for state in shown]
    longer = max(0, max((len(state.label) for state in shown), default=0) - _NAME)
    if longer + max(map(len, names), default=0) + _BETWEEN + _COLUMN * len(metrics) > room:
        names = [name.rpartition("-")[2] for name in names]
    if ids:
        room -= max(map(len, names), default=0) + _BETWEEN
    headings = _headings(metrics, wide=wide)
    metrics = metrics[: max(1, room // _COLUMN)]
    for heading in ("step", *headings[: len(metrics)]):
        table.add_column(heading, justify="right", no_wrap=True)
    paced = wide and any(_pace(state) for state in shown)
    if paced:
        table.add_column("steps/s", justify="right", no_wrap=True)
    counted = width >= 120 and room - _RATES >= _COLUMN * len(metrics)
    counted = counted and any(state.tokens_per_second for state in shown)
    if counted:
        table.add_column("tokens/s", justify="right", no_wrap=True)
        table.add_column("MFU", justify="right", no_wrap=True)
    timed = any(state.eta for state in shown)
    if timed:
        table.add_column("left", justify="right", no_wrap=True)
    for state, name in zip(shown, names, strict=True):
        found = {metric.name: metric for metric in state.metrics}
        row: list[Text | str] = [
            Text(state.label),
            *([Text(name)] if ids else []),
            Text(_state(state, wide=wide), style=STYLES.get(state.state, "")),
            f"{state.step}/{state.steps}" if state.steps else "",
            *[_measured(found.get(metric.name), wide=wide) for metric in metrics],
        ]
        if paced:
            row.append(_number(_pace(state), ".0f"))
        if counted:
            row += [_number(state.tokens_per_second, ",.0f"), _number(state.mfu, ".0%")]
        active = state.state in ("queued", "blocked", "starting", "training", "evaluating")
        if timed:
            row.append(duration(state.eta) if active and state.eta is not None else "")
        table.add_row(*row)
    if len(shown) < len(states):
        table.add_row(f"... {len(states) - len(shown)} more")
    return table


def _pace(run: RunState) -> float | None:
    """Return the steps a second of a run that trains; None where they are not known."""
    return run.steps_per_second if run.state == "training" else None


def _state(run: RunState, *, wide: bool) -> str:
    """Return the state, and for an evaluation how many of its shards are measured."""
    measured, wanted = run.shards
    if run.state != "evaluating" or not wanted:
        return run.state
    return f"{'evaluating' if wide else 'eval.'} {measured}/{wanted}"


def _how(run: RunState) -> str:
    """Return the state of a run with trouble: failed, cancelled, or unfinished while it is tried again."""
    return run.state if run.state in ("failed", "cancelled") else "unfinished"


def _because(run: RunState) -> str:
    return f": {run.trouble}" if run.trouble else ""


def _total(state: LaunchState, *, width: int | None = None) -> str:
    """Return the progress of the whole sweep: all work, its parts, the runs and the time.

    Work, runs and time are in one line, or in more where it is wider than `width`.
    """
    parts = []
    (trained, steps), (measured, evaluations) = state.steps, state.evaluations
    if steps:
        parts.append(f"{percent(trained / steps)} of training")
    if evaluations:
        parts.append(f"{measured:,} of {evaluations:,} evaluations")
    share = "" if state.share is None else f"{percent(state.share)} of all work: "
    counted = Counter(_STAGES.get(run.state, "waiting") for run in state.runs)
    runs = ", ".join(f"{counted[stage]} {stage}" for stage in ("done", "running", "waiting"))
    failed = "".join(f", {counted[stage]} {stage}" for stage in ("failed", "cancelled") if counted[stage])
    time = f"{duration(state.elapsed)} so far"
    if _over(state):
        time += ", closing Ray and MLflow"
    if state.left is not None:
        time += f", {between(*state.left)} left"
    lines = [f"{share}{', '.join(parts)}"]
    for part in (f"runs: {runs}{failed}", time):
        longer = f"{lines[-1]}; {part}"
        lines[-1:] = [longer] if width is None or len(longer) <= width else [lines[-1], part]
    return "\n".join(lines)


def _over(state: LaunchState) -> bool:
    """Return whether no run of a launch asks for anything more."""
    return all(run.state in OVER for run in state.runs)


def between(least: float, most: float) -> str:
    """Return a range of seconds for a reader."""
    low, high = duration(least), duration(most)
    return f"about {high}" if low == high else f"{low} to {high}"


def _drawn(state: LaunchState, *, width: int, room: int) -> Group:
    """Return a state with the table of at most `room` runs, a bar for the whole sweep and the troubles."""
    trained, steps = state.steps
    share = state.share if state.share is not None else trained / max(steps, 1)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=share, width=40))
    troubled = [run for run in state.runs if run.trouble][:_MOST_TROUBLES]
    troubles = [Text(f"{run.label}: {_how(run)}{_because(run)}", style=STYLES[_how(run)]) for run in troubled]
    table = runs_table(state.runs, width=width, limit=room - len(troubles))
    return Group(table, bar, Text(_total(state, width=width)), *troubles)


class LiveView:
    """The view on a terminal: the table, redrawn in place, with a bar for the whole sweep.

    What is printed meanwhile stands above it, with `remarks`; without, standard output goes where it went.
    """

    def __init__(self, console: Console, footer: list[str], *, remarks: bool = True) -> None:
        self._console = console
        self._footer = footer
        self._live = Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=remarks)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._live.stop()

    def __call__(self, state: LaunchState) -> None:
        """Show a state."""
        room = max(5, self._console.height - 8 - len(self._footer))
        notes = [Text(line, style="dim") for line in self._footer]
        self._live.update(Group(_drawn(state, width=self._console.width, room=room), *notes))


class NotebookView:
    """The view in a notebook: the table as HTML below the cell, redrawn in place, at most once a second."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # there is a notebook, so it is there

        self._html, self._display = HTML, display
        self._handle: Any = None
        self._shown = -math.inf

    def __enter__(self) -> NotebookView:
        return self

    def __exit__(self, *_: Any) -> None:
        return

    def __call__(self, state: LaunchState) -> None:
        """Show a state."""
        if time.monotonic() - self._shown < 1.0 and not _over(state):
            return
        self._shown = time.monotonic()
        page = self._html(_page(state))
        if self._handle is None:
            self._handle = self._display(page, display_id=True)
        else:
            self._handle.update(page)


def _page(state: LaunchState) -> str:
    """Return a state as HTML of a fixed width."""
    paper = Console(file=io.StringIO(), record=True, width=120, markup=False, highlight=False, emoji=False)
    paper.print(_drawn(state, width=120, room=30))
    return paper.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def progress() -> LiveView | NotebookView | LineView:
    """Return a view of a launch for `rs.launch`: in a notebook, on a terminal, or plain lines elsewhere.

    with rs.progress() as view:
        results = rs.launch(sweep, observer=view)
    """
    if _in_notebook():
        return NotebookView()
    errors = console(stderr=True)
    return LiveView(errors, []) if errors.is_terminal else LineView(errors)


def _in_notebook() -> bool:
    """Return whether a notebook shows the output of this process: a kernel of IPython runs it."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class LineView(Lines):
    """A view for a pipe: a line for every change of state or milestone, and one for all once a minute.

    There is one for all as soon as the time left is known, too, and one when no run has anything left.
    """

    def __init__(self, target: Console) -> None:
        super().__init__(target)
        self._counted = time.monotonic()
        self._told = Told()
        self._known = self._ended = False

    def __call__(self, state: LaunchState) -> None:
        """Print the changes since the last state."""
        for line in self._told.changes(state.runs):
            self.say(line)
        known, ended = self._known or state.left is not None, _over(state)
        if (known, ended) != (self._known, self._ended) or time.monotonic() - self._counted >= HEARTBEAT:
            self._known, self._ended = known, ended
            self._counted = time.monotonic()
            self.say(_total(state))
