"""The number of runs of a launch that may be at work: it follows the cluster, and the launches on it.

    nodes come and go, launches begin and end -> Slots -> Tune starts the next run, or does not

Tune asks before each run.  A run that has begun goes on, whatever the number is by then.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Searcher
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysweep.engine.board import Board
from raysweep.engine.cluster import Cluster
from raysweep.engine.mailbox import IDLE
from raysweep.engine.share import Share, per_run
from raysweep.errors import ConfigError
from raysweep.sweep import Resources

log = logging.getLogger("raysweep.launch")

#: Seconds between two looks at the cluster.
_PERIOD = 2.0

#: Seconds for which a launch begins no run after one has ended, where launches are more than runs that fit:
#: its lane gives its resources back, and another launch takes them.
TURN = IDLE + 5.0


class Slots(tune.Callback):
    """The number of runs of a launch that may be at work now.

    It is what fits into the launch's share of the cluster as it is now, and not more than
    `resources.max_concurrent` if that is a number.  A launch that is alone takes such a number at its word,
    because a cluster that adds nodes on demand may have room for them later.

    As a callback of Tune it goes on telling other launches what is left when no run is left to begin.  `told`
    hears of each change.  Raises `ConfigError` as `concurrency` does, whose options these are.
    """

    def __init__(
        self, resources: Resources, cluster: Cluster, *, spare: bool = False, shared: bool = False
    ) -> None:
        self._resources = resources
        self._spare, self._room_is_shared = spare, shared
        self._now = concurrency(resources, cluster, spare=spare, shared=shared)
        self._most = resources.max_concurrent if isinstance(resources.max_concurrent, int) else None
        self._fixed = self._most is not None
        self._embedded = cluster.embedded
        self._share: Share | None = None
        self._next = 0.0
        self._left, self._live = 0, set[str]()
        #: Whether runs waited for this launch's share when Tune asked last.
        self._waits = False
        #: Whether launches take turns, and when the latest run of this one has ended.
        self._turns, self._ended = False, -math.inf
        self.told: list[Callable[[int], None]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles what it is given; nobody uses that copy.
        return object, ()

    @property
    def now(self) -> int:
        """The number of runs at once, as of the latest look."""
        return self._now

    def join(self, board: Board) -> None:
        """Follow the cluster from now on, and share it with the launches of other boards."""
        if not self._embedded:
            self._share = Share(board, self._resources)

    def expect(self, runs: int) -> None:
        """Prepare for so many runs, before any of them begins."""
        self._left, self._live = runs, set()

    def fewer(self) -> None:
        """Allow one run less from now on, because memory did not suffice."""
        self._most = max(1, self._now - 1)
        self._set(self._most)

    def free(self) -> bool:
        """Return whether a run may begin now."""
        self._refresh()
        rests = self._turns and not self._live and time.monotonic() - self._ended < TURN
        self._waits = rests or len(self._live) >= self._now
        return not self._waits

    def begin(self, trial_id: str) -> None:
        """Note that a trial has begun."""
        self._live.add(trial_id)

    def end(self, trial_id: str) -> None:
        """Note that a trial has ended."""
        if trial_id in self._live:
            self._live.discard(trial_id)
            self._left -= 1
            self._ended = time.monotonic()

    def close(self) -> None:
        """Leave the share to other launches."""
        if self._share is not None:
            self._share.close()

    def on_step_begin(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Look at the cluster, at most every two seconds; Tune calls this in each turn of its loop."""
        self._refresh()

    def _refresh(self) -> None:
        if self._share is None or time.monotonic() < self._next:
            return
        try:
            self._look(self._share)
        except ray.exceptions.RayError as error:
            log.warning("the size of the cluster is not known now: %s", error)
        self._next = time.monotonic() + _PERIOD

    def _look(self, share: Share) -> None:
        left = max(self._left, len(self._live))
        wanted = left if self._most is None else min(left, self._most)
        waiting = max(0, wanted - len(self._live)) if self._waits else 0
        offer, place, rivals = share.look(left, waiting)
        self._turns = rivals > 0 and _times(offer, per_run(self._resources)) < 1
        if self._fixed and not rivals:
            self._set(self._most or 1)
            return
        # What a fair share leaves of a run goes to the launches that come first by name.
        more = (rivals - place) / (rivals + 1)
        fits = fitting(self._resources, offer, spare=self._spare, shared=self._room_is_shared, more=more)
        self._set(max(1, fits if self._most is None else min(fits, self._most)))

    def _set(self, runs: int) -> None:
        if runs != self._now:
            self._now = runs
            for tell in self.told:
                tell(runs)


class Grid(BasicVariantGenerator):
    """Tune's own search, whose trials begin as `Slots` allow."""

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self._slots = slots

    def next_trial(self) -> Any:
        """Return the next trial; None if there is none, or no room for it."""
        if self.is_finished() or not self._slots.free():
            return None
        trial = super().next_trial()
        if trial is not None:
            self._slots.begin(trial.trial_id)
        return trial

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial has ended."""
        super().on_trial_complete(trial_id, result, error)
        self._slots.end(trial_id)


class Limited(ConcurrencyLimiter):
    """A search algorithm whose trials begin as `Slots` allow."""

    def __init__(self, searcher: Searcher, slots: Slots) -> None:
        super().__init__(searcher, max_concurrent=sys.maxsize)
        self._slots = slots

    def suggest(self, trial_id: str) -> Any:
        """Return the next configuration; None if there is none now, or no room for it."""
        if not self._slots.free():
            return None
        found = super().suggest(trial_id)
        if found is not None and found != Searcher.FINISHED:
            self._slots.begin(trial_id)
        return found

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note that a trial has ended."""
        super().on_trial_complete(trial_id, result, error)
        self._slots.end(trial_id)


def concurrency(resources: Resources, cluster: Cluster, *, spare: bool = False, shared: bool = False) -> int:
    """Return the number of runs at once: as many as fit, or `resources.max_concurrent` if it is a number.

    The driver of a run takes no CPU.  Without a limit, every run would start and wait for workers that never
    find room.  If two runs still fit beside one evaluation, room for that evaluation is kept free, so that
    evaluations continue during training.  With `spare`, the room is kept free even if only one run fits
    beside it: schedulers that decide by evaluations need them early.  With `shared`, as many as fit:
    evaluations share the CPUs of training.

    Raises `ConfigError` for workers or evaluations that fit on no node.  A cluster that adds nodes on demand
    may have room for them later: one that has no processors at all is taken for such, and a number for
    `resources.max_concurrent` says so of another one.
    """
    needs = {"per_worker": resources.per_worker, "evaluate": resources.evaluate}
    empty = not any(node.get("CPU", 0.0) or node.get("GPU", 0.0) for node in cluster.nodes)
    growing = not cluster.embedded and (empty or isinstance(resources.max_concurrent, int))
    for field, need in needs.items():
        if not growing and not any(_fits(need, node) for node in cluster.nodes):
            raise ConfigError(
                f"resources.{field}: {_show(need)} fits on none of the {len(cluster.nodes)} node(s) "
                f"(the largest: {_show(_largest(cluster, need))}); lower it, or, where nodes are added "
                "on demand, set resources.max_concurrent to a number"
            )
    whole = per_run(resources)
    fits = fitting(resources, cluster.resources, spare=spare, shared=shared)
    if fits < 1 and not growing:
        raise ConfigError(
            f"resources: a run needs {_show(whole)} but the cluster has {_show(_picked(cluster, whole))}; "
            "lower resources.workers or resources.per_worker, or, where nodes are added on demand, set "
            "resources.max_concurrent to a number"
        )
    if isinstance(resources.max_concurrent, int):
        return resources.max_concurrent
    return max(1, fits)


def fitting(
    resources: Resources, offer: Mapping[str, float], *, spare: bool, shared: bool, more: float = 0.0
) -> int:
    """Return the number of runs that fit into an offer, as `concurrency` does; it may be 0.

    `more`, below 1, is added to the number before it is rounded down.
    """
    whole = per_run(resources)
    fits = int(_times(offer, whole) + more)
    if shared:
        return fits
    left = {name: total - resources.evaluate.get(name, 0.0) for name, total in offer.items()}
    beside = int(_times(left, whole) + more)
    return beside if beside >= (1 if spare else 2) else fits


def _times(offer: Mapping[str, float], need: Mapping[str, float]) -> float:
    """Return how many times `need` fits into `offer`; 1 if `need` is empty."""
    return min((offer.get(name, 0.0) / n + 1e-9 for name, n in need.items() if n > 0), default=1.0)


def _fits(need: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in need.items())


def _largest(cluster: Cluster, need: Mapping[str, float]) -> dict[str, float]:
    return {name: max((node.get(name, 0.0) for node in cluster.nodes), default=0.0) for name in need}


def _picked(cluster: Cluster, need: Mapping[str, float]) -> dict[str, float]:
    return {name: cluster.resources.get(name, 0.0) for name in need}


def _show(resources: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in resources.items()) + "}"
