"""`raysweep bench trace`: the Fisher trace beside other ways to it, at equal accuracy.

Estimators differ in the cost of one input and in the variance of its value.  So the unit is a trace to 1 %
relative standard error, which costs 10⁴ times the seconds for an input times the relative variance of its
value. Relative variances are measured in the same run, on the same model.  raysweep's follows from its own
standard error, which is checked against the spread over 40 seeds.  A peer's is the variance between inputs,
which all estimators share, plus the variance of its own random vectors or labels.
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
            work=f"Fisher trace to 1 %, {shape} {words}: {_LANGUAGE}",
            build=partial(trace, shape, state),
        )
        for size, shape in _SIZES.items()
        for state, words in _STATES.items()
    ),
    Entry(
        key="lstm-64",
        work=f"Fisher trace to 1 %, LSTM 64/2 saturated: {_LANGUAGE}",
        build=partial(trace, "64/2", "saturated"),
    ),
)


def introduction(record: Record) -> str:
    """Return sentences that say what the table of a record shows, and the result."""
    works = "; ".join(
        f"`{case.key}` {case.work.partition(', ')[2].partition(':')[0]}" for case in record.cases
    )
    verdicts = [row.met for case in record.cases for row in case.comparisons]
    verdicts += [figure.met for case in record.cases for figure in case.figures]
    judged = [met for met in verdicts if met is not None]
    words = [
        "The cost of a Fisher trace to 1 % relative standard error: seconds for an input times the relative "
        "variance of its value, measured on the same model in the same run. A line is a peer, with its cost "
        "divided by raysweep's, or a figure of raysweep's own estimate. A column is a model on sentences of "
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
        words.append(f"{sum(judged)} of {len(judged)} goals are met.")
    return " ".join(words)
