"""Many runs in few lines: their states, also by the values of each axis, failures by reason, the slowest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from raysweep.sweep.names import axis_text
from raysweep.sweep.run_state import RunState, State
from raysweep.sweep.units import count, duration

#: Most axes, values of an axis, reasons and slowest runs that are listed.
_AXES, _VALUES, _REASONS, _SLOWEST = 8, 8, 8, 5
#: Most characters of a reason.
_WIDTH = 160

#: Numbers in reasons, such as the step of a loss that is not finite, make no other reason.
_NUMBER = re.compile(r"\d[\d,.]*")


def counts(states: Iterable[RunState]) -> dict[State, int]:
    """Return the number of runs in each state that some run is in."""
    counted = Counter(state.state for state in states)
    return {state: counted[state] for state in get_args(State) if counted[state]}


def summary(states: Sequence[RunState], axes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return lines on runs, some 120 at most however many runs there are; `axes` are values by run id."""
    return [
        f"{count(len(states), 'run')}: {told(counts(states))}",
        *_by_axis(states, axes),
        *_reasons(states),
        *_slowest(states),
    ]


def told(counted: Mapping[State, int]) -> str:
    """Return the number of runs in each state as text, such as `2 done, 1 failed`."""
    return ", ".join(f"{number:,} {state}" for state, number in counted.items())


def _by_axis(states: Sequence[RunState], axes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    values: dict[str, dict[str, list[RunState]]] = {}
    for state in states:
        for path, value in axes.get(state.run_id, {}).items():
            values.setdefault(path, {}).setdefault(axis_text(path, value), []).append(state)
    paths = [path for path in values if len(values[path]) > 1]
    lines = []
    for path in paths[:_AXES]:
        lines.append(f"by {path}:")
        found = list(values[path].items())
        # Where there are too many, the values with failures come first.
        if len(found) > _VALUES:
            found.sort(key=lambda item: -sum(state.state == "failed" for state in item[1]))
        width = max(len(text) for text, _ in found[:_VALUES])
        lines += [f"  {text:<{width}}  {told(counts(mine))}" for text, mine in found[:_VALUES]]
        if len(found) > _VALUES:
            lines.append(f"  ... and {count(len(found) - _VALUES, 'more value')}")
    if len(paths) > _AXES:
        lines.append(f"... and {len(paths) - _AXES} more axes")
    return lines


def _reasons(states: Sequence[RunState]) -> list[str]:
    grouped: dict[tuple[str, str], list[RunState]] = {}
    for state in states:
        if state.state in ("failed", "cancelled"):
            grouped.setdefault((state.state, _NUMBER.sub("#", state.trouble)), []).append(state)
    found = sorted(grouped.items(), key=lambda item: -len(item[1]))
    lines = []
    for (how, _), mine in found[:_REASONS]:
        reason = mine[0].trouble
        reason = reason if len(reason) <= _WIDTH else f"{reason[: _WIDTH - 3]}..."
        example = mine[0].run_id if len(mine) == 1 else f"{len(mine):,} runs, such as {mine[0].run_id}"
        lines.append(f"{how}: {example}: {reason}")
    if len(found) > _REASONS:
        lines.append(f"... and {count(len(found) - _REASONS, 'more reason')}")
    return lines


def _slowest(states: Sequence[RunState]) -> list[str]:
    worked = sorted((state for state in states if state.seconds > 0), key=lambda state: -state.seconds)
    if not worked:
        return []
    return [
        "the most time of training and measuring took:",
        *(f"  {state.run_id}  {duration(state.seconds)}, {state.state}" for state in worked[:_SLOWEST]),
    ]
