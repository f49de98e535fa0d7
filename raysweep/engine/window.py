"""Ray tasks in a bounded window: their number in flight, their placement and their retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

K = TypeVar("K", bound=Hashable)


class Window(Generic[K]):
    """Submits work lazily so that at most `size` tasks are in flight.

    Results come back in order of completion, as (key, object reference).  The caller fetches them, and so
    sees the exception of the task itself.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._waiting: deque[tuple[K, Callable[[], ray.ObjectRef]]] = deque()
        self._flying: dict[ray.ObjectRef, K] = {}

    def add(self, key: K, submit: Callable[[], ray.ObjectRef]) -> None:
        """Queue one piece of work; `submit` is called when there is room."""
        self._waiting.append((key, submit))

    def __len__(self) -> int:
        return len(self._waiting) + len(self._flying)

    def ready(self, timeout: float) -> Iterator[tuple[K, ray.ObjectRef]]:
        """Submit the tasks that fit, wait up to `timeout` seconds for one to end, and yield all that have."""
        while self._waiting and len(self._flying) < self.size:
            key, submit = self._waiting.popleft()
            self._flying[submit()] = key
        if not self._flying:
            return
        done, _ = ray.wait(list(self._flying), num_returns=len(self._flying), timeout=0)
        if not done:
            done, _ = ray.wait(list(self._flying), num_returns=1, timeout=timeout)
        for reference in done:
            yield self._flying.pop(reference), reference

    def cancel(self) -> None:
        """Drop the work that waits and cancel the tasks in flight."""
        self._waiting.clear()
        for reference in self._flying:
            ray.cancel(reference, force=False)
        self._flying.clear()


#: `max_retries` covers the death of a process, `retry_exceptions` a storage that is briefly out of reach.
RETRIES: dict[str, Any] = {"max_retries": 3, "retry_exceptions": [OSError]}


#: Ray documents None for "no placement group"; its types do not.
_NO_GROUP: Any = None
_ANYWHERE = PlacementGroupSchedulingStrategy(placement_group=_NO_GROUP)


def task_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Translate `{CPU: 1, GPU: 0.25, name: n}` into the options of a task.

    The task is placed anywhere in the cluster: by default it would have to fit into the placement group of
    the trial that submits it, which has no CPU.
    """
    rest = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "scheduling_strategy": _ANYWHERE,
        **({"resources": rest} if rest else {}),
    }
