"""The notice board of a launch: what every run is doing now, and the request to stop.

The board serves the live view alone.  No result depends on it: the ledger is the record.  Its process imports
nothing but Ray, so the metrics in the news are bytes there.

A launch has one board, of one core.  So what goes on for long tells its news and asks whether to stop in one
call, waits for the answer, and calls the less often, the more runs are at work (`pause`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import ray.cloudpickle

if TYPE_CHECKING:
    from raysweep.engine.outcome import Trouble
    from raysweep.evaluation.metric import Metric
    from raysweep.sweep.run_state import State

#: The most calls a second of all runs together, and the least seconds between two calls of one run.
_CALLS, _PAUSE = 250.0, 1.0

#: Seconds that workers have to write a checkpoint and leave, once they have heard that they are to.  A disk
#: that others keep busy takes more than ten; batch systems kill after thirty.
GRACE = 20.0

#: The namespace of the boards' names, by which the launches of a cluster know one another.
NAMESPACE = "raysweep"


def pause(at_work: int) -> float:
    """Return the seconds between two calls of a run where so many are at work.

    >>> pause(1), pause(1000)
    (1.0, 4.0)
    """
    return max(_PAUSE, at_work / _CALLS)


class Answer(NamedTuple):
    """The board's answer to a run: whether it is asked to stop, and the number of runs at work."""

    stop: bool
    at_work: int


@dataclass(frozen=True, kw_only=True)
class News:
    """News of one run; a field that is None says nothing."""

    state: State | None = None
    #: The training step that was reached, and the speed there.
    step: int | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    #: The newest milestone that was evaluated, and its metrics.
    evaluated: int | None = None
    metrics: Sequence[Metric] | None = None
    #: Shards of the run's evaluations: those that this attempt has measured, and those it has asked for.
    shards: tuple[int, int] | None = None
    #: Evaluations of each kind that are done, parts included, and their seconds.
    evaluations: Mapping[str, tuple[float, float]] | None = None
    #: The trouble that ended the latest attempt.
    trouble: Trouble | None = None

    def then(self, later: News) -> News:
        """Return these news with later ones laid over them.

        >>> News(state="training", step=3).then(News(step=4)) == News(state="training", step=4)
        True
        """
        return replace(self, **{name: value for name, value in vars(later).items() if value is not None})

    def packed(self) -> dict[str, Any]:
        """Return the fields that say something, with the metrics as bytes.

        >>> News(state="training", step=3).packed()
        {'state': 'training', 'step': 3}
        """
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.metrics is not None:
            known["metrics"] = ray.cloudpickle.dumps(self.metrics)
        return {name: value for name, value in known.items() if value is not None}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> News:
        """Return the news that `packed` made these fields of."""
        known = dict(packed)
        if "metrics" in known:
            known["metrics"] = ray.cloudpickle.loads(known["metrics"])
        return cls(**known)


#: States of a run that a trial has taken up and not left.
_AT_WORK = ("starting", "training", "evaluating")


class _Board:
    """The actor: keeps the latest news of each run, and which runs are asked to stop."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        #: The mark of the latest news of each run.  Marks grow, from a lost actor to the next one, too.
        self._marks: dict[str, int] = {}
        self._mark = time.time_ns()
        self._at_work: set[str] = set()
        self._stop_all = False
        self._stop: set[str] = set()
        self._wants: dict[str, float] | None = None

    def begin(self, run_id: str) -> None:
        self._stop.discard(run_id)
        self.post(run_id, {"state": "starting"})
        self._news[run_id].pop("trouble", None)

    def post(self, run_id: str, news: dict[str, Any]) -> None:
        if self._stop_all and news.get("state") == "evaluating":
            news = news | {"state": "unfinished"}  # nobody waits for evaluations any more
        held = self._news.setdefault(run_id, {})
        held.update(news)
        self._note(run_id, held)

    def _note(self, run_id: str, news: Mapping[str, Any]) -> None:
        self._mark += 1
        self._marks[run_id] = self._mark
        # Each trial asks for their number again and again, and there may be thousands of runs.
        (self._at_work.add if news.get("state") in _AT_WORK else self._at_work.discard)(run_id)

    def read(self, since: int) -> tuple[int, dict[str, dict[str, Any]]]:
        return self._mark, {run: news for run, news in self._news.items() if self._marks[run] > since}

    def troubles(self) -> dict[str, Any]:
        return {run: news["trouble"] for run, news in self._news.items() if "trouble" in news}

    def leave(self, run_id: str) -> None:
        if self._news.get(run_id, {}).get("state") in _AT_WORK:
            self.post(run_id, {"state": "unfinished"})

    def at_work(self) -> int:
        return len(self._at_work)

    def training(self) -> int:
        return sum(self._news[run].get("state") == "training" for run in self._at_work)

    def want(self, resources: dict[str, float]) -> None:
        self._wants = resources

    def wants(self) -> dict[str, float] | None:
        return self._wants

    def request_stop(self, run_id: str | None) -> None:
        if run_id is None:
            self._stop_all = True
            for run, news in self._news.items():
                if news.get("state") == "evaluating":
                    news["state"] = "unfinished"
                    self._note(run, news)
        else:
            self._stop.add(run_id)

    def tell(self, run_id: str, news: dict[str, Any]) -> tuple[bool, int]:
        if news:
            self.post(run_id, news)
        return self._stop_all or run_id in self._stop, len(self._at_work)


_ACTOR: Any = ray.remote(num_cpus=0, max_restarts=-1)(_Board)

#: Seconds to wait for an answer of the board.
_PATIENCE = 5.0


class Board:
    """The board as every process of a launch sees it.

    What is posted or requested is sent without waiting.  Reading raises `ray.exceptions.RayError` while the
    board is being restarted.
    """

    def __init__(self) -> None:
        # Ray ends the actor, and the name with it, as soon as the launch's process is gone.
        self.name = f"launch-{uuid.uuid4().hex[:12]}"
        self._actor = _ACTOR.options(name=self.name, namespace=NAMESPACE).remote()

    def begin(self, run_id: str) -> None:
        """Note that a run is taken up, and wait; an earlier request to stop it no longer holds."""
        ray.get(self._actor.begin.remote(run_id))

    def post(self, run_id: str, news: News) -> None:
        """Add news of one run, if they say anything."""
        if packed := news.packed():
            self._actor.post.remote(run_id, packed)

    def read(self, since: int = 0) -> tuple[int, dict[str, News]]:
        """Return a mark, and the news by run id of the runs that have some since an earlier one.

        `since` is the mark that an earlier call has returned.
        """
        mark, news = ray.get(self._actor.read.remote(since), timeout=_PATIENCE)
        return mark, {run_id: News.unpacked(packed) for run_id, packed in news.items()}

    def troubles(self) -> dict[str, Trouble]:
        """Return the troubles by run id that have ended the latest attempts."""
        found: dict[str, Trouble] = ray.get(self._actor.troubles.remote(), timeout=_PATIENCE)
        return found

    def training(self) -> int:
        """Return the number of runs that are trained."""
        return int(ray.get(self._actor.training.remote(), timeout=_PATIENCE))

    def leave(self, run_id: str) -> None:
        """Note that a trial has left a run, if it has not said how the run ended."""
        self._actor.leave.remote(run_id)

    def at_work(self) -> int:
        """Return the number of runs that trials have taken up; 1 while the board is being restarted."""
        try:
            return max(1, ray.get(self._actor.at_work.remote(), timeout=_PATIENCE))
        except ray.exceptions.RayError:
            return 1

    def want(self, resources: Mapping[str, float]) -> None:
        """Tell other launches how much all runs that are left would take at once."""
        self._actor.want.remote(dict(resources))

    def close(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    def request_stop(self, run_id: str | None = None) -> None:
        """Ask the workers of one run, or of all, to write a checkpoint and leave.

        They hear of it within `pause`.
        """
        self._actor.request_stop.remote(run_id)

    def send(self, run_id: str, news: News) -> ray.ObjectRef:
        """Add news of one run, if they say anything, and ask; `answer` waits for the answer."""
        asked: ray.ObjectRef = self._actor.tell.remote(run_id, news.packed())
        return asked

    def answer(self, asked: ray.ObjectRef) -> Answer:
        """Return the answer to what `send` has asked."""
        return Answer(*ray.get(asked, timeout=_PATIENCE))


class Line:
    """The line of a training to the board: tells what is new, and hears whether to stop, in a thread.

    To say something and to read the answer cost nothing.  The first call says that the run is trained: a
    launch that is asked to stop waits for such runs alone.
    """

    def __init__(self, board: Board, run_id: str) -> None:
        self._board = board
        self._run_id = run_id
        self._unsent = News(state="training")
        self._stop = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="raysweep-line", daemon=True)
        self._thread.start()

    def __call__(self) -> bool:
        """Return whether the workers of the run have been asked to leave."""
        return self._stop

    def say(self, news: News) -> None:
        """Tell some news with the next call, over those that wait for it."""
        with self._lock:
            self._unsent = self._unsent.then(news)

    def close(self) -> None:
        """Send what waits, and end the thread: nothing is sent after what others say later."""
        with self._lock:
            self._ended.set()
            self._board.post(self._run_id, self._unsent)

    def _watch(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            with self._lock:
                if self._ended.is_set():
                    return
                asked, self._unsent = self._board.send(self._run_id, self._unsent), News()
            try:
                self._stop, at_work = self._board.answer(asked)
                wait = pause(at_work)
            except ray.exceptions.RayError:
                wait = 2 * _PAUSE  # the board is being restarted; training continues without it
