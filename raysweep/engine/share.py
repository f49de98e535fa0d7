"""The share of a launch in its cluster, and what it asks of the cluster's autoscaler.

Launches know one another by the names of their boards (`raysweep.engine.board`), which end with the process
of a launch, however it ends.  Each board tells what the runs that its launch has left would take at once.
Shares are fair in the sense of max-min: who wants less than an equal share gets it, and the others divide the
rest.  No run is stopped for that; a launch that has more than its share begins no further run.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util import list_named_actors

from raysweep.engine.board import NAMESPACE, Board
from raysweep.sweep import Resources

log = logging.getLogger("raysweep.launch")

#: The most runs beyond those at work for which a launch asks the autoscaler at a time.
AHEAD = 256

#: Seconds after which the autoscaler forgets what it was asked for, and those after which it is asked again.
_EXPIRE, _AGAIN = 60.0, 15.0


def per_run(resources: Resources) -> dict[str, float]:
    """Return the resources of all workers of one run together."""
    return {name: amount * resources.workers for name, amount in resources.per_worker.items()}


def portion(total: float, others: Sequence[float]) -> float:
    """Return what is left to a launch that wants all of `total`, where others want so much of it each.

    >>> portion(8, []), portion(8, [math.inf]), portion(9, [math.inf, 1])
    (8, 4.0, 4.0)
    """
    left = total
    for k, other in enumerate(sorted(others)):
        left -= min(other, left / (len(others) - k + 1))
    return left


class Others:
    """The other launches of a cluster, as the board of this one knows them; asks and never waits."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._boards: dict[str, Any] = {}
        self._asked: dict[str, ray.ObjectRef] = {}
        self._wants: dict[str, Mapping[str, float] | None] = {}

    def look(self) -> dict[str, Mapping[str, float] | None]:
        """Return by name what each other launch wants, as far as it has said; and ask again."""
        names = {each["name"] for each in list_named_actors(all_namespaces=True) if _is_launch(each)}
        for known in (self._boards, self._asked, self._wants):
            for gone in known.keys() - names:
                known.pop(gone)
        for name in sorted(names - {self._own}):
            try:
                self._ask(name)
            except (ValueError, ray.exceptions.RayError):
                # It ends just now, or is being restarted: the next look knows.
                self._asked.pop(name, None)
        return {name: self._wants.get(name) for name in names - {self._own}}

    def _ask(self, name: str) -> None:
        if name not in self._boards:
            self._boards[name] = ray.get_actor(name, NAMESPACE)
        asked = self._asked.get(name)
        if asked is not None:
            if not ray.wait([asked], timeout=0)[0]:
                return
            self._wants[name] = ray.get(asked)
        self._asked[name] = self._boards[name].wants.remote()


def _is_launch(actor: Mapping[str, str]) -> bool:
    return actor["namespace"] == NAMESPACE and actor["name"].startswith("launch-")


class Share:
    """The share of a launch in a cluster that may have others."""

    def __init__(self, board: Board, resources: Resources) -> None:
        self._board = board
        self._others = Others(board.name)
        self._resources = resources
        self._demand = _Demand(board.name, resources)

    def look(self, runs: int, waiting: int) -> tuple[dict[str, float], int, int]:
        """Return what this launch may take, its place among its rivals from 0, and their number.

        `runs` are left, and `waiting` of them wait for room.
        """
        need = per_run(self._resources)
        self._board.want({name: amount * runs for name, amount in need.items()})
        self._demand.ask(waiting)
        offer = dict(ray.cluster_resources())
        others = {
            name: {resource: math.inf if told is None else told.get(resource, 0.0) for resource in offer}
            for name, told in self._others.look().items()
        }
        rivals = sorted(name for name, told in others.items() if any(told.get(each) for each in need))
        mine = {r: portion(total, [told[r] for told in others.values()]) for r, total in offer.items()}
        return mine, sum(name < self._board.name for name in rivals), len(rivals)

    def close(self) -> None:
        """Want nothing more."""
        self._board.want({})
        self._demand.ask(0)


class _Demand:
    """Asks the autoscaler, if the cluster has one, for room for runs that wait.

    Ray Train asks for room for those at work.  Its coordinator adds all requests up, because the autoscaler
    knows one at a time, and drops those that nobody renews, such as a killed launch's.
    """

    def __init__(self, name: str, resources: Resources) -> None:
        self._name = name
        self._each = [dict(resources.per_worker)] * resources.workers
        self._asked = 0
        self._next = 0.0

    def ask(self, runs: int) -> None:
        runs = min(runs, AHEAD)
        if self._next == math.inf or (runs == self._asked and (runs == 0 or time.monotonic() < self._next)):
            return
        self._asked, self._next = runs, time.monotonic() + _AGAIN
        try:
            from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
                get_or_create_autoscaling_coordinator,
            )
        except ImportError:
            # Ray does not export it, so another version may have it elsewhere.
            log.warning("this Ray has no coordinator, so its autoscaler learns of runs as they begin")
            self._next = math.inf
            return
        get_or_create_autoscaling_coordinator().request_resources.remote(
            requester_id=f"raysweep-{self._name}", resources=self._each * runs, expire_after_s=_EXPIRE
        )
