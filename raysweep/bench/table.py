"""Records as tables: for the terminal, and as Markdown that a file holds between two comments."""

from __future__ import annotations

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from raysweep.bench.record import CaseRecord, Comparison, Environment, Figure, Goal, Record, Spread
from raysweep.bench.suites import OWN_RUNNERS, SUITES
from raysweep.errors import ConfigError
from raysweep.report.markdown import in_markdown, replaced

HEADINGS = ("work", "raysweep", "beside", "found", "goal")

#: Suites with the same peers and figures in every case: each case is a column.
CROSSED = frozenset({"trace", "statistics", "scale", "growth"})

#: Least processors with other work, and least share of time taken away, that a caption names.
_OTHERS, _STOLEN = 0.05, 0.02

#: The file that holds the tables of the committed records.
README = Path(__file__).parent / "README.md"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table.

    `key` and `work` are empty in all lines of a case but the first; `met` is None where there is no goal.
    """

    key: str
    work: str
    rate: str
    beside: str
    found: str
    goal: str
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """Return the text of each column; that of the goal says whether it is met."""
        verdict = {True: " ✓", False: " missed", None: ""}[self.met]
        work = f"`{self.key}` {self.work}" if self.key else ""
        return (work, self.rate, self.beside, self.found, self.goal + verdict)


def lines(record: Record) -> Iterator[Line]:
    """Yield the lines of a record, case by case."""
    for case in record.cases:
        if case.reason is not None:
            yield Line(key=case.key, work=case.work, rate="", beside="", found="not run", goal="")
            continue
        rate = _rate(case)
        rest = [*map(_compared, case.comparisons), *map(_figure, case.figures)]
        for k, (beside, found, goal, met) in enumerate(rest or [("", "", "", None)]):
            first = k == 0
            yield Line(
                key=case.key if first else "",
                work=case.work if first else "",
                rate=rate if first else "",
                beside=beside,
                found=found,
                goal=goal,
                # Goals hold for full sizes.
                met=None if record.quick else met,
            )


def notes(record: Record) -> list[str]:
    """Return the notes on cases and peers."""
    found = []
    for case in record.cases:
        if case.reason is not None:
            found.append(f"{case.key}: {case.reason}.")
        for row in case.comparisons:
            said = [text for text in (row.note, row.reason) if text]
            if said:
                found.append(f"{row.peer} ({case.key}): {'; '.join(said)}.")
    return found


def caption(record: Record) -> str:
    """Return a sentence on the machine, the software and the method of the measurement."""
    place, peak = record.environment, record.peak
    versions = ", ".join(f"{name} {number}" for name, number in place.versions.items())
    commit = (
        "" if place.commit is None else f"; commit {place.commit[:10]}" + (" (changed)" * bool(place.dirty))
    )
    threads = "one thread" if place.threads == 1 else f"{place.threads} threads"
    clock = "CPU time" if place.gpu is None else "wall time"
    gpu = "" if place.gpu is None else f"{place.gpu}; "
    half = ""
    if peak.gemm_bfloat16_gflops is not None:
        half = f", {number(peak.gemm_bfloat16_gflops)} in bfloat16"
    quick = "A quick run on small sizes, which compares nothing. " if record.quick else ""
    ratios = (
        f"Ratios are of {clock} for the same work, {threads}, all contestants taking turns in one run: "
        "median and, in brackets, quartiles over the rounds. "
    )
    return (
        f"{quick}{ratios if record.compares else ''}"
        f"{gpu}{place.cpu} ({place.cpu_capability}), "
        f"{place.cores} cores{_company(place)}; its peak in the same run: matrix products "
        f"{number(peak.gemm_float32_gflops)} GF/s in float32, {number(peak.gemm_float64_gflops)} in float64"
        f"{half}, copying {number(peak.copy_gbytes)} GB/s. Python {place.python}, {versions}; "
        f"{place.date}{commit}."
    )


def _company(place: Environment) -> str:
    """Return words on a machine that did other things as well, nothing for a quiet one."""
    words = ""
    if place.others is not None and place.others >= _OTHERS:
        words += f", {place.others:.1f} of them busy with other work"
    if place.stolen is not None and place.stolen >= _STOLEN:
        words += f", {place.stolen:.0%} of their time taken away by the host"
    return words


def terminal(record: Record, others: Sequence[Record] = ()) -> RenderableType:
    """Return the table with its notes for a terminal, beside `others` where they have the same work."""
    parts: list[RenderableType] = []
    for line in lines(record):
        if line.key:
            parts += ["", Text.assemble((line.key, "bold"), f"  {line.work}")]
            if line.rate:
                parts.append(f"  {line.rate}")
            grid = Table.grid(padding=(0, 2))
            # On a wide terminal all grids have the same columns; on a narrow one, names are wrapped.
            grid.add_column(min_width=20)
            grid.add_column(no_wrap=True)
            grid.add_column(no_wrap=True)
            parts.append(grid)
        *_, beside, found, goal = line.cells
        if beside or found:
            style = {True: "green", False: "red", None: ""}[line.met]
            grid.add_row(f"  {beside}".ljust(35), found.rjust(22), Text(goal.rjust(17), style))
    remarks: list[RenderableType] = [Text(f"- {note}") for note in notes(record)]
    if len(rows := across([record, *others])) > 1:
        headings, *rest = rows
        grid = Table(box=None, pad_edge=False, header_style="bold")
        for k, heading in enumerate((headings[0], "here", *headings[2:])):
            grid.add_column(heading, justify="right" if k else "left", overflow="fold")
        for row in rest:
            grid.add_row(*row)
        remarks += ["", grid]
    return Group(*parts, "", *remarks, "", Text(caption(record)))


def markdown(record: Record, *others: Record) -> str:
    """Return the table with its notes as Markdown, below the introduction of the suite if it has one.

    Below them stand the ratios of all records, where there are `others`, of other processors.  Processors and
    GPUs have a table each, since they do other work.
    """
    every = (record, *others)
    groups = [[one for one in every if (one.environment.gpu is None) == kind] for kind in (True, False)]
    return "\nOn GPUs:\n\n".join(_whole(*group) for group in groups if group)


def _whole(record: Record, *others: Record) -> str:
    if record.suite in CROSSED:
        tables, said = crossed(record), merged_notes(record)
    else:
        tables, said = [[HEADINGS, *(line.cells for line in lines(record))]], notes(record)
    remarks = "\n".join(f"- {note}" for note in said)
    module = importlib.import_module((SUITES | OWN_RUNNERS)[record.suite])
    introduction = getattr(module, "introduction", None)
    above = "" if introduction is None else introduction(record)
    parts = [above, *map(in_markdown, tables), remarks, caption(record)]
    if others and len(rows := across([record, *others])) > 1:
        kind = "processors" if record.environment.gpu is None else "GPUs"
        parts += [f"The same on other {kind}:", in_markdown(rows), *map(caption, others)]
    return "\n\n".join(part for part in parts if part) + "\n"


def across(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return the headings and rows of a table of what several records have in common: ratios and shares.

    A column is a record, named by its processor; a row is a peer of a case, or a figure with a goal.  Seconds
    are in none, as those of one processor say nothing about another.  Of processors and GPUs, those of the
    other kind than the first record's are left out.
    """
    records = [r for r in records if (r.environment.gpu is None) == (records[0].environment.gpu is None)]
    cells: dict[tuple[str, str], dict[int, str]] = {}
    goals: dict[tuple[str, str], str] = {}
    for k, record in enumerate(records):
        for case in record.cases:
            compared = [_compared(row) for row in case.comparisons if row.ratio is not None]
            figures = [_figure(row) for row in case.figures if row.goal is not None and row.unit in ("", "×")]
            for beside, found, goal, met in (*compared, *figures):
                verdict = {True: " ✓", False: " missed", None: ""}[None if record.quick else met]
                cells.setdefault((case.key, beside), {})[k] = found.partition(" (")[0] + verdict
                goals[case.key, beside] = goals.get((case.key, beside)) or goal
    rows = [
        (f"{key}: {beside}", *(found.get(k, "") for k in range(len(records))), goals[key, beside])
        for (key, beside), found in cells.items()
        # What no other record has is no comparison.
        if len(found) > 1
    ]
    names = [record.environment.processor for record in records]
    return [("ratio", *names, "goal"), *rows]


def crossed(record: Record) -> list[list[tuple[str, ...]]]:
    """Return the rows of tables, each of neighbouring cases with peers or goals in common."""
    groups: list[list[CaseRecord]] = []
    for case in record.cases:
        if case.reason is None:
            if not groups or not _measured(groups[-1][-1]) & _measured(case):
                groups.append([])
            groups[-1].append(case)
    return [_crossed(group, record.quick) for group in groups]


def _measured(case: CaseRecord) -> set[str]:
    """Return the names of a case's peers and of its figures with a goal."""
    figures = {figure.name for figure in case.figures if figure.goal is not None}
    return figures | {row.peer for row in case.comparisons}


def _crossed(cases: list[CaseRecord], quick: bool) -> list[tuple[str, ...]]:
    """Return the rows of a table of cases by peers and figures.

    A case is a column, or a line where there are more of them than of peers and figures.
    """
    cells: dict[str, dict[str, str]] = {}
    goals: dict[str, str] = {}
    for case in cases:
        if case.timing is not None:
            second = "CPU-seconds" if case.timing.clock == "cpu" else "seconds"
            own = cells.setdefault(f"raysweep, {second} a {case.unit}", {})
            own[case.key] = number(case.timing.seconds.median)
        for beside, found, goal, met in (*map(_compared, case.comparisons), *map(_figure, case.figures)):
            # Goals hold for full sizes.
            verdict = {True: " ✓", False: " missed", None: ""}[None if quick else met]
            cells.setdefault(beside, {})[case.key] = found + verdict
            goals[beside] = goals.get(beside) or goal
    keys = [case.key for case in cases]
    if len(keys) > len(cells):
        headings = [f"{name} ({goals[name]})" if goals.get(name) else name for name in cells]
        return [("case", *headings), *((f"`{k}`", *(row.get(k, "") for row in cells.values())) for k in keys)]
    rows = [(name, *(row.get(key, "") for key in keys), goals.get(name, "")) for name, row in cells.items()]
    return [("beside", *(f"`{key}`" for key in keys), "goal"), *rows]


def merged_notes(record: Record) -> list[str]:
    """Return the notes on cases and peers, one line for each peer.

    Notes are split at their semicolons.  A part that does not hold for all cases of a peer names its cases.
    """
    found = [f"{case.key}: {case.reason}." for case in record.cases if case.reason is not None]
    peers = Counter(row.peer for case in record.cases for row in case.comparisons)
    said: dict[str, dict[str, list[str]]] = {}
    for case in record.cases:
        for row in case.comparisons:
            for text in (part for whole in (row.note, row.reason) if whole for part in whole.split("; ")):
                said.setdefault(row.peer, {}).setdefault(text, []).append(case.key)
    for peer, texts in said.items():
        parts = [
            text if len(keys) == peers[peer] else f"{text} ({', '.join(keys)})"
            for text, keys in texts.items()
        ]
        found.append(f"{peer}: {'; '.join(parts)}.")
    return found


def written(text: str, record: Record, *others: Record) -> str:
    """Return a text with the table of a record, and of `others` of its suite, between its two comments.

    Raises `ConfigError` where the text does not have exactly one such pair.
    """
    return replaced(text, f"bench:{record.suite}", markdown(record, *others))


def write(path: Path, record: Record, *others: Record) -> None:
    """Put the table of a record, and of `others`, into a file.

    Raises `ConfigError` for a file without the two comments.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        new = written(text, record, *others)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    path.write_text(new, encoding="utf-8")


def number(value: float) -> str:
    """Return a number with three significant digits and commas between thousands.

    >>> number(81234.5), number(4.712), number(0.5512), number(0.0)
    ('81,200', '4.71', '0.551', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def _rate(case: CaseRecord) -> str:
    if case.timing is None:
        return ""
    second = "CPU-second" if case.timing.clock == "cpu" else "second"
    return f"{number(1.0 / case.timing.seconds.median)} {case.unit}s per {second}"


def _compared(row: Comparison) -> tuple[str, str, str, bool | None]:
    status = {"equal": "", "unequal": " (not equal)", "failed": "not equal, not timed", "absent": "absent"}
    found = "" if row.ratio is None else _ratio(row.ratio)
    return row.peer, found + status[row.status], _goal(row.goal, "×"), row.met


def _figure(figure: Figure) -> tuple[str, str, str, bool | None]:
    unit = figure.unit if figure.unit in ("", "×") else f" {figure.unit}"
    # A count has all its digits.
    count = not figure.unit and figure.value.is_integer()
    return (
        figure.name,
        f"{figure.value:,.0f}" if count else f"{number(figure.value)}{unit}",
        _goal(figure.goal, unit, figure.among),
        figure.met,
    )


def _ratio(spread: Spread) -> str:
    return f"{number(spread.median)}× ({number(spread.lower)}–{number(spread.upper)})"


def _goal(goal: Goal | None, unit: str, among: int | None = None) -> str:
    if goal is None:
        return ""
    text = re.sub(r"\.0$", "", f"{goal.value:,}")
    if goal.sense == "within":
        return f"{goal.value:g}–{goal.upto:g}{unit}"
    allowance = goal.allowance(among)
    more = f" + {allowance:.4f}" if allowance else ""
    return f"{'≥' if goal.sense == 'at least' else '≤'} {text}{more}{unit}"
