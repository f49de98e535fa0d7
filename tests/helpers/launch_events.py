"""A launch event by event: runs that queue at the parts of a launch and are then trained, a GPU each."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import dataclass

#: What a process does next: ("use", part, seconds of its core), or ("sleep", "", seconds).
Step = tuple[str, str, float]


@dataclass
class Launch:
    """GPUs that take runs, and each of them uses the parts in turn and is then trained for some seconds.

    `each_second` are the seconds that a part works in each second whatever happens, `at_work` those for each
    run that is trained.  A run that is trained calls the part `called` for `call` seconds, waits for the
    answer, and then for `pause` seconds, again and again.
    """

    gpus: int
    runs: int
    train: float
    parts: dict[str, float]
    each_second: dict[str, float]
    at_work: dict[str, float]
    called: str
    call: float
    pause: float

    def __post_init__(self) -> None:
        self.now, self.left, self.working = 0.0, self.runs, 0
        self.ended: list[float] = []
        self.used = dict.fromkeys(self.parts, 0.0)
        #: The moment at which a part has done all that it was asked for so far.
        self._free = dict.fromkeys(self.parts, 0.0)
        self._events: list[tuple[float, int, Generator[Step]]] = []
        self._count = 0

    def run(self) -> None:
        """Let the launch happen until its last run has ended."""
        for _ in range(self.gpus):
            self._go_on(self._slot())
        for part, seconds in self.each_second.items():
            self._go_on(self._ticks(part, seconds))
        while len(self.ended) < self.runs:
            self.now, _, process = heapq.heappop(self._events)
            self._go_on(process)

    def _go_on(self, process: Generator[Step]) -> None:
        try:
            what, part, seconds = next(process)
        except StopIteration:
            return
        due = self.now + seconds
        if what == "use":
            due = self._free[part] = max(self.now, self._free[part]) + seconds
            self.used[part] += seconds
        self._count += 1
        heapq.heappush(self._events, (due, self._count, process))

    def _slot(self) -> Generator[Step]:
        while self.left:
            self.left -= 1
            for part, seconds in self.parts.items():
                yield "use", part, seconds
            over = [False]
            self._go_on(self._calls(over))
            for part, seconds in self.at_work.items():
                self._go_on(self._ticks(part, seconds, over))
            yield "sleep", "", self.train
            over[0] = True
            self.ended.append(self.now)

    def _calls(self, over: list[bool]) -> Generator[Step]:
        while not over[0]:
            yield "use", self.called, self.call
            yield "sleep", "", self.pause

    def _ticks(self, part: str, seconds: float, over: list[bool] | None = None) -> Generator[Step]:
        """Ask for a part each second, also while it has not done what it was asked for before."""
        while not (over and over[0]):
            self._go_on(self._once(part, seconds))
            yield "sleep", "", 1.0

    def _once(self, part: str, seconds: float) -> Generator[Step]:
        yield "use", part, seconds
