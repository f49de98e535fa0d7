"""A suite in short: what the paper found and what was measured here, for README, terminal and page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError
from raysweep.files import write_atomic
from raysweep.report.committed import RESULT, Result, read_result
from raysweep.report.markdown import in_markdown, replaced
from raysweep.report.verdict import Finding, effect
from raysweep.sweep.suite import RESULTS, Member, Standing
from raysweep.sweep.units import duration

#: Marks of the made parts of the README of a suite.
FIGURES, VERDICTS = "paper:figures", "paper:verdicts"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of a suite with its results, None where there are none; `standing` is how far it has come."""

    member: Member
    standing: Standing
    result: Result | None = None

    @property
    def stale(self) -> bool:
        """Whether the results are of an earlier version of the file."""
        return self.result is not None and self.result.written.configuration != self.member.configuration

    @property
    def verdicts(self) -> tuple[Mapping[str, Any], ...]:
        """The verdicts; () without results."""
        return self.result.written.verdicts if self.result is not None else ()

    @property
    def remarks(self) -> list[str]:
        """Sentences on results that are not whole."""
        if self.result is None:
            return []
        standing = self.result.written.standing
        found = (
            []
            if standing.state == "done"
            else [f"unfinished: {standing.done} of {standing.runs} runs are done"]
        )
        return found + (["measured with an earlier version of this file"] if self.stale else [])


def committed(members: Iterable[Member]) -> list[Entry]:
    """Return the files of a suite with their committed results; raises `DataError` for damaged ones."""
    entries = []
    for member in members:
        result = read_result(member.results)
        standing = Standing(state="not run") if result is None else result.written.standing
        entries.append(Entry(member=member, standing=standing, result=result))
    return entries


def in_short(verdict: Mapping[str, Any]) -> str:
    """Return the claim of a verdict, as `Verdict.encode` gives it, and its outcome."""
    return f"{short_claim(verdict)}: {verdict['verdict']}"


def short_claim(verdict: Mapping[str, Any]) -> str:
    """Return a claim without the words that all of them share."""
    return str(verdict["claim"]).replace("at equal loss, ", "")


def effect_of(verdict: Mapping[str, Any]) -> str:
    """Return the effect with its interval; – where there is none."""
    if verdict["effect"]["value"] is None:
        return "–"
    value, low, high, p = (
        math.nan if number is None else float(number)
        for number in (verdict["effect"][name] for name in ("value", "low", "high", "p"))
    )
    return effect(Finding(name="", value=value, low=low, high=high, p=p), verdict["unit"])


def p_of(verdict: Mapping[str, Any]) -> str:
    """Return the p-value among all claims of the file; – where nothing was tested."""
    return "–" if verdict["p_corrected"] is None else f"{verdict['p_corrected']:.2g}"


def figures_table(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return the rows of Markdown of the suite: a row for each figure of the paper."""
    rows: list[tuple[str, ...]] = [("file", "in the paper", "question", "the paper's finding", "our result")]
    for group in grouped(entries):
        first = group[0].member
        paper = first.paper
        told = ("", "", "") if paper is None else (paper.place, paper.question, paper.finding)
        rows.append((f"[{first.figure}]({group[0].member.path.name})", *told, _ours(group)))
    return rows


def grouped(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the files of each figure, that at the paper's scale first."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.member.figure, []).append(entry)
    return [sorted(group, key=lambda entry: entry.member.small) for group in groups.values()]


def _ours(group: Sequence[Entry]) -> str:
    found = []
    for entry in group:
        if entry.result is not None:
            said = "; ".join([*map(in_short, entry.verdicts), *entry.remarks]) or "no claim could be judged"
            named = "small" if entry.member.small else "at the paper's scale"
            found.append(f"[{named}]({RESULTS}/{entry.member.stem}/{RESULT}): {said}")
    return ". ".join(found) or "not run"


def verdicts_table(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Return the rows of Markdown of all verdicts, with the numbers behind them."""
    rows: list[tuple[str, ...]] = [
        ("file", "claim", "verdict", "effect [95 % interval]", "p", "runs", "minutes", "processor minutes")
    ]
    for entry in entries:
        if entry.result is None:
            continue
        origin = entry.result.written.provenance
        spent = [in_minutes(origin.wall_seconds), in_minutes(origin.cpu_seconds)]
        for k, verdict in enumerate(entry.verdicts):
            rows.append(
                (
                    f"[{entry.member.stem}]({entry.member.path.name})" if k == 0 else "",
                    short_claim(verdict),
                    str(verdict["verdict"]),
                    effect_of(verdict),
                    p_of(verdict),
                    f"{verdict['runs']}",
                    *(spent if k == 0 else ("", "")),
                )
            )
    return rows


def in_minutes(seconds: float | None) -> str:
    """Return seconds in minutes, or a dash where they are not known."""
    return "–" if seconds is None else f"{seconds / 60:.1f}"


def readme_text(text: str, entries: Sequence[Entry]) -> str:
    """Return the README of a suite with its two tables as the entries have it.

    Raises `ConfigError` where the text lacks the comments around one of them.
    """
    verdicts = verdicts_table(entries)
    text = replaced(text, FIGURES, in_markdown(figures_table(entries)) + "\n")
    body = in_markdown(verdicts) + "\n" if len(verdicts) > 1 else "None of the files has results yet.\n"
    return replaced(text, VERDICTS, body)


def write_readme(path: Path, entries: Sequence[Entry]) -> None:
    """Put the tables into the README of a suite; raises `ConfigError` for one without a place for them."""
    try:
        text = readme_text(path.read_text(encoding="utf-8"), entries)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    write_atomic(path, text.encode())


def origin_words(result: Result) -> str:
    """Return in a sentence where results come from."""
    origin = result.written.provenance
    spent = f"{duration(origin.wall_seconds)} of training and measuring"
    ways = []
    for software in origin.measured_with:
        commit = "no checkout" if software.commit is None else f"commit {software.commit[:10]}"
        changed = ", with uncommitted changes" if software.dirty else ""
        ways.append(
            f"raysweep {software.raysweep} ({commit}{changed}), torch {software.torch}, {software.processor}"
        )
    return f"Measured until {origin.date}, {spent}: {'; '.join(ways) or 'by no recorded launch'}."
