"""`raysweep bench trace`: the Fisher trace beside other ways to it, at equal accuracy.

Estimators differ in what one input costs and in how much it tells, so what is compared is the cost of a
trace to 1 % relative standard error: seconds an input times the relative variance of its value, by 10⁴.  The
unit is a millionth of such a trace.  Relative variances are measured in the same run, on the same model and
inputs: that between inputs, which all share, and that of each one's random vectors.
"""

from __future__ import annotations

from functools import partial

from raysweep.bench.harness import Entry
from raysweep.bench.trace.cases import trace
from raysweep.bench.trace.subject import State

_LANGUAGE = "16 words of an HMM of the paper's shape"
_SIZES = {"64": "64/1/2/256", "128": "128/2/4/512"}
_STATES: dict[State, str] = {
    "init": "at initial weights",
    "saturated": "trained",
    "peaked": "trained, logits times 4",
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
        work=f"Fisher trace to 1 %, LSTM 64/2 trained: {_LANGUAGE}",
        build=partial(trace, "64/2", "saturated"),
    ),
)
