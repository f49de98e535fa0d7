"""The page of a suite: all figures of a paper, what it found, and what was measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError
from raysweep.files import write_atomic
from raysweep.report import tables
from raysweep.report.committed import Result, Software, last_record, read_result, result_of
from raysweep.report.data import measurements
from raysweep.report.page import page
from raysweep.report.parts import folded, section, small
from raysweep.report.suite_figures import PLACES, suite_figures
from raysweep.report.suite_tables import Entry, effect_of, grouped, in_short, origin_words, p_of, short_claim
from raysweep.report.summary import summary
from raysweep.sweep import Sweep
from raysweep.sweep.provenance import provenance
from raysweep.sweep.suite import Member, Standing, opened, standing


def newest(members: Sequence[Member], storage: Path) -> list[Entry]:
    """Return the files of a suite with their committed results, or those of a storage where they are newer.

    Results that lack runs never take the place of whole ones.  Raises `DataError` for damaged results.
    """
    entries, software = [], Software.of(provenance())
    for member in members:
        result, found = read_result(member.results), Standing(state="not run")
        try:
            sweep = opened(member, storage)
            found = standing(sweep)
        except ConfigError:
            if result is None:
                raise
            sweep = None  # the text or model that it names is not here, and its results are
        if sweep is not None and found.state != "not run" and _counts(member, result, sweep, found):
            result = result_of(member, sweep, found, software) or result
        entries.append(Entry(member=member, standing=found, result=result))
    return entries


def _counts(member: Member, result: Result | None, sweep: Sweep, found: Standing) -> bool:
    """Return whether the records of a storage take the place of committed results."""
    if result is None or result.written.configuration != member.configuration:
        return True
    old, last = result.written, last_record(sweep)
    return last is not None and last > old.provenance.time and found.done >= old.done


def write_suite(entries: Sequence[Entry], path: Path) -> Path:
    """Write the page of a suite and return its absolute path; raises `OSError` where that fails."""
    path = path.absolute()
    write_atomic(path, render_suite(entries).encode())
    return path


def render_suite(entries: Sequence[Entry]) -> str:
    """Return the page of a suite: a table of all figures, and a section for each that has results."""
    title = "The paper, figure by figure"
    ran = [entry for entry in entries if entry.result is not None]
    lead = f"{len(ran)} of {len(entries)} sweeps have results. Those of “-small” files are of small models."
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="lead">{lead}</p>',
        section("Found by the paper, and here", _overview(entries), fold=False),
    ]
    ramps = {0}
    for place, group in enumerate(grouped(entries)):
        body, sizes = _figure(group, PLACES * 10 * place)
        ramps |= sizes
        parts.append(body)
    return page(title, "\n".join(filter(None, parts)), 1, *sorted(ramps - {0}))


def _overview(entries: Sequence[Entry]) -> str:
    rows = []
    for group in grouped(entries):
        paper = group[0].member.paper
        for k, entry in enumerate(group):
            found = "; ".join(map(in_short, entry.verdicts)) or "–"
            told = ["", ""] if k or paper is None else [paper.place, paper.finding]
            stem = escape(entry.member.stem)
            named = f'<a href="#{escape(entry.member.figure)}">{stem}</a>' if entry.result else stem
            rows.append([named, *map(escape, told), escape(_state(entry)), escape(found)])
    return tables.table(["file", "in the paper", "the paper", "state", "here"], rows, text=5, wrap=(2, 4))


def _state(entry: Entry) -> str:
    """Return the state of a file: that of its storage, or of its committed results where that has nothing."""
    if entry.standing.state == "not run" and entry.result is not None:
        return entry.result.written.standing.words
    return entry.standing.words


def _figure(group: Sequence[Entry], place: int) -> tuple[str, set[int]]:
    """Return the section of a figure, "" without results, and the numbers of sizes that it draws."""
    ran = [(entry, entry.result) for entry in group if entry.result is not None]
    if not ran:
        return "", set()
    member, paper = group[0].member, group[0].member.paper
    heading = member.figure if paper is None else f"{paper.place}: {paper.question}"
    told = "" if paper is None else f"<p><b>The paper:</b> {escape(paper.finding)}.</p>"
    body, sizes = told, set[int]()
    for k, (entry, result) in enumerate(ran):
        drawn, count = _member(entry, result, place + k * PLACES)
        body += drawn
        sizes.add(count)
    waiting = [f"{e.member.stem}: {e.standing.words}." for e in group if e.result is None]
    shown = section(heading, body + "".join(map(small, waiting)), fold=False)
    return shown.replace("<section>", f'<section id="{escape(member.figure)}">', 1), sizes


def _member(entry: Entry, result: Result, place: int) -> tuple[str, int]:
    """Return what one file has measured, and the number of its sizes."""
    written, frame = result.written, result.frame
    measured = measurements(frame)
    lines = "".join(f"<li>{_sentence(verdict)}</li>" for verdict in entry.verdicts)
    found = f'<ul class="findings">{lines}</ul>' if lines else small("No claim could be judged.")
    said = "".join(f'<p class="note warn">{escape(remark)}</p>' for remark in entry.remarks)
    figures = suite_figures(measured, written.questions, name=entry.member.stem, place=place)
    numbers = [
        [escape(short_claim(v)), escape(effect_of(v)), p_of(v), f"{v['effect']['clusters']} {v['units']}"]
        for v in entry.verdicts
    ]
    behind = tables.table(["claim", "effect [95 % interval]", "p", "clusters"], numbers, text=2, wrap=0)
    ending = folded("At the last milestone", tables.variants_table(summary(frame)))
    body = (
        f"<h3>{escape(entry.member.stem)}</h3>{found}{said}{figures}"
        f"{folded('The numbers behind the verdicts', behind) if numbers else ''}{ending}"
        f"{small(origin_words(result))}"
    )
    return f'<div class="ramp-{len(measured.sizes)}">{body}</div>', len(measured.sizes)


def _sentence(verdict: Mapping[str, Any]) -> str:
    claim, outcome = str(verdict["claim"]), str(verdict["verdict"])
    rest = str(verdict["sentence"]).removeprefix(f"{claim}: {outcome}")
    return f"{escape(claim)}: <b>{escape(outcome)}</b>{escape(rest)}"
