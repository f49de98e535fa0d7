"""`raysweep bench trace`: the Fisher trace beside other ways to it, at equal accuracy.

Estimators differ in what one input costs and in how much it tells, so what is compared is the cost of a
trace to 1 % relative standard error: seconds an input times the relative variance of its value, by 10⁴.  That
trace is the unit.  Relative variances are measured in the same run, on the same model: raysweep's as its own
standard error claims it, which is checked against the spread over 40 seeds; a peer's as the spread between
inputs, which all share, with that of its own random vectors or labels.
"""

from __future__ import annotations

from functools import partial

from raysweep.bench.harness import Entry
from raysweep.bench.record import Record
from raysweep.bench.table import number
from raysweep.bench.trace.cases import trace
from raysweep.bench.trace.subject import State

_LANGUAGE = "16 words of an HMM of 10 states and 20 words"
_SIZES = {"64": "64/1/2/256", "128": "128/2/4/512"}
_STATES: dict[State, str] = {
    "init": "at initial weights",
    "saturated": "saturated",
    "peaked": "saturated, logits times 4",
}

ENTRIES = (
    *(
        Entry(
            key=f"encoder-{size}-{state}",
            work=f"Fisher trace to 1 %, {shape} {told}: {_LANGUAGE}",
            build=partial(trace, shape, state),
        )
        for size, shape in _SIZES.items()
        for state, told in _STATES.items()
    ),
    Entry(
        key="lstm-64",
        work=f"Fisher trace to 1 %, LSTM 64/2 saturated: {_LANGUAGE}",
        build=partial(trace, "64/2", "saturated"),
    ),
)


def introduction(record: Record) -> str:
    """Return what a table of the suite shows and what came out, in sentences."""
    works = "; ".join(
        f"`{case.key}` {case.work.partition(', ')[2].partition(':')[0]}" for case in record.cases
    )
    verdicts = [row.met for case in record.cases for row in case.comparisons]
    verdicts += [figure.met for case in record.cases for figure in case.figures]
    judged = [met for met in verdicts if met is not None]
    words = [
        "What a Fisher trace to 1 % relative standard error costs: seconds an input times the relative "
        "variance of its value, measured on the same model in the same run. Lines are peers, with their cost "
        "by raysweep's, and figures of raysweep's own estimate; columns are models on sentences of "
        f"{_LANGUAGE}: {works}."
    ]
    ratios: dict[str, list[float]] = {}
    for case in record.cases:
        for row in case.comparisons:
            if row.ratio is not None:
                ratios.setdefault(row.peer, []).append(row.ratio.median)
    if ratios:
        spans = (
            f"{'–'.join(dict.fromkeys(map(number, (min(found), max(found)))))}× ({peer})"
            for peer, found in ratios.items()
        )
        words.append(f"raysweep's trace is cheaper by {', '.join(spans)}.")
    if judged and not record.quick:
        words.append(f"Of {len(judged)} goals {sum(judged)} are met.")
    return " ".join(words)
