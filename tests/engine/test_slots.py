"""Runs at once on a cluster that changes and may be shared, and requests that fit nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.cloudpickle
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import Searcher

from raysweep.engine import slots as module
from raysweep.engine.cluster import Cluster
from raysweep.engine.share import per_run
from raysweep.engine.slots import TURN, Grid, Limited, Slots, concurrency
from raysweep.errors import ConfigError
from raysweep.sweep import Resources


def cluster(*nodes: dict[str, float], embedded: bool = True) -> Cluster:
    names = {name for node in nodes for name in node}
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in names}
    session = Path("session") if embedded else None
    return Cluster(address="", session=session, nodes=nodes, resources=total)


@pytest.mark.parametrize(
    ("resources", "nodes", "expected"),
    [
        (Resources(), [{"CPU": 1.0}], 1),
        # Two cores: both train; a free one would be idle half of the time.
        (Resources(), [{"CPU": 2.0}], 2),
        # Three and more: one is left to evaluations.
        (Resources(), [{"CPU": 3.0}], 2),
        (Resources(), [{"CPU": 8.0}], 7),
        (Resources(evaluate={"CPU": 4.0}), [{"CPU": 8.0}], 4),
        # GPUs are not shared with evaluations on CPUs.
        (Resources(per_worker={"GPU": 1.0}), [{"CPU": 64.0, "GPU": 4.0}], 4),
        (Resources(per_worker={"CPU": 7.0, "GPU": 1.0}), [{"CPU": 16.0, "GPU": 4.0}], 2),
        (Resources(workers=4), [{"CPU": 4.0}, {"CPU": 4.0}], 2),
        (Resources(per_worker={}), [{"CPU": 2.0}], 1),
        (Resources(max_concurrent=7), [{"CPU": 2.0}], 7),
    ],
)
def test_as_many_as_fit(resources: Resources, nodes: list[dict[str, float]], expected: int) -> None:
    assert concurrency(resources, cluster(*nodes)) == expected


def test_a_scheduler_needs_evaluations_beside_training() -> None:
    assert concurrency(Resources(), cluster({"CPU": 2.0}), spare=True) == 1
    assert concurrency(Resources(), cluster({"CPU": 1.0}), spare=True) == 1


def test_no_room_is_kept_for_evaluations_that_share_the_cpus_of_training() -> None:
    assert concurrency(Resources(), cluster({"CPU": 8.0}), shared=True) == 8
    assert concurrency(Resources(workers=2), cluster({"CPU": 5.0}), shared=True) == 2
    with pytest.raises(ConfigError, match="a run needs"):
        concurrency(Resources(workers=9), cluster({"CPU": 8.0}), shared=True)


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(per_worker={"GPU": 1.0}), r"resources.per_worker: \{GPU: 1\} fits on none"),
        (Resources(evaluate={"CPU": 4.0}), r"resources.evaluate: \{CPU: 4\} fits on none.*CPU: 2"),
        (Resources(per_worker={"CPU": 3.0}), r"resources.per_worker: \{CPU: 3\}"),
        (Resources(workers=9), "a run needs {CPU: 9} but the cluster has {CPU: 8}"),
        (Resources(workers=9, max_concurrent=1), "a run needs {CPU: 9} but the cluster has {CPU: 8}"),
        (Resources(evaluate={"GPU": 1.0}, max_concurrent=2), "resources.evaluate"),
    ],
)
def test_what_never_fits_is_refused(resources: Resources, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        concurrency(resources, cluster(*[{"CPU": 2.0}] * 4))


def test_a_growing_cluster_is_taken_at_its_word() -> None:
    gpu = {"per_worker": {"GPU": 1.0}}
    small = cluster({"CPU": 2.0}, embedded=False)
    assert concurrency(Resources(**gpu, max_concurrent=3), small) == 3
    with pytest.raises(ConfigError, match=r"set resources\.max_concurrent to a number"):
        concurrency(Resources(**gpu), small)


def test_a_cluster_without_processors_is_one_that_grows() -> None:
    head = {"CPU": 0.0, "memory": 1e9}
    assert concurrency(Resources(per_worker={"GPU": 1.0}), cluster(head, embedded=False)) == 1
    assert concurrency(Resources(workers=8), cluster(head, head, embedded=False)) == 1
    with pytest.raises(ConfigError, match="fits on none"):
        concurrency(Resources(), cluster(head))


def test_a_run_takes_what_its_workers_take() -> None:
    assert per_run(Resources(workers=4, per_worker={"CPU": 2.0, "GPU": 1.0})) == {"CPU": 8.0, "GPU": 4.0}


class FakeShare:
    """A share that a test sets, on a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offer: Mapping[str, float] = {"CPU": 4.0}
        self.place = self.rivals = 0
        self.seconds = 0.0
        self.asked: list[tuple[int, int]] = []
        self.lost = False
        monkeypatch.setattr(module, "Share", lambda board, resources: self)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.seconds))

    def look(self, runs: int, waiting: int) -> tuple[dict[str, float], int, int]:
        if self.lost:
            raise ray.exceptions.RayError("nobody answers")
        self.asked.append((runs, waiting))
        return dict(self.offer), self.place, self.rivals

    def close(self) -> None:
        self.asked.append((0, 0))

    def later(self, seconds: float = 3.0) -> None:
        self.seconds += seconds


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> FakeShare:
    return FakeShare(monkeypatch)


def joined(resources: Resources | None = None, *, runs: int = 20, **kwargs: Any) -> Slots:
    made = Slots(resources or Resources(), cluster({"CPU": 4.0}, embedded=False), shared=True, **kwargs)
    board: Any = None
    made.join(board)
    made.expect(runs)
    return made


def begin_all(slots: Slots, names: str) -> str:
    """Begin the runs that may begin now; return their names."""
    found = ""
    for name in names:
        if slots.free():
            slots.begin(name)
            found += name
    return found


def test_runs_follow_a_cluster_that_grows_and_shrinks(share: FakeShare) -> None:
    slots = joined()
    told: list[int] = []
    slots.told.append(told.append)
    assert begin_all(slots, "abcdefgh") == "abcd"
    share.offer = {"CPU": 6.0}
    assert begin_all(slots, "efgh") == ""
    share.later()
    assert begin_all(slots, "efgh") == "ef"
    share.offer = {"CPU": 2.0}
    share.later()
    slots.end("a")
    assert begin_all(slots, "gh") == ""
    for name in "bcdef":
        slots.end(name)
    assert begin_all(slots, "gh") == "gh"
    # All nodes may have left for a moment; the next run waits for one to come.
    share.offer = {}
    share.later()
    slots.end("g")
    slots.end("h")
    assert begin_all(slots, "ijk") == "i"
    assert told == [6, 2, 1]


def test_the_autoscaler_is_asked_for_what_waits_for_room(share: FakeShare) -> None:
    slots = joined(runs=10)
    begin_all(slots, "abcdefghij")
    share.later()
    slots.free()
    assert share.asked[-1] == (10, 6)
    slots.end("a")
    share.later()
    slots.free()
    assert share.asked[-1] == (9, 6)
    # There is room, so what has not begun waits for something else, such as another run.
    share.later()
    slots.free()
    assert share.asked[-1] == (9, 0)
    slots.close()
    assert share.asked[-1] == (0, 0)


def test_others_learn_what_is_left_when_all_runs_have_begun(share: FakeShare) -> None:
    """Tune asks a search that is finished for nothing more."""
    slots = joined(runs=3)
    assert begin_all(slots, "abc") == "abc"
    slots.end("a")
    slots.on_step_begin(1, [])
    share.later()
    slots.on_step_begin(2, [])
    slots.on_step_begin(3, [])
    assert share.asked == [(3, 0), (2, 0)]


def test_a_number_bounds_the_runs_and_the_demand(share: FakeShare) -> None:
    slots = joined(Resources(max_concurrent=6), runs=10)
    assert begin_all(slots, "abcdefghij") == "abcdef"
    share.rivals, share.offer = 1, {"CPU": 2.0}
    share.later()
    for name in "abcdef":
        slots.end(name)
    assert begin_all(slots, "ghij") == "gh"
    share.later()
    slots.free()
    assert share.asked[-1] == (4, 2)
    share.rivals, share.offer = 1, {"CPU": 40.0}
    share.later()
    slots.free()
    assert slots.now == 6


@pytest.mark.parametrize(
    ("portion", "rivals", "expected"),
    [(4.0, 1, [4, 4]), (1.5, 1, [2, 1]), (5 / 3, 2, [2, 2, 1]), (4 / 3, 2, [2, 1, 1]), (1.0, 3, [1] * 4)],
)
def test_launches_take_all_together_and_none_more_than_one_above_another(
    share: FakeShare, portion: float, rivals: int, expected: list[int]
) -> None:
    found = []
    for place in range(rivals + 1):
        share.offer, share.rivals, share.place = {"CPU": portion}, rivals, place
        slots = joined()
        slots.free()
        found.append(slots.now)
    assert found == expected


@pytest.mark.parametrize("place", [0, 1])
def test_launches_that_are_more_than_fit_take_turns(share: FakeShare, place: int) -> None:
    share.offer, share.rivals, share.place = {"CPU": 0.5}, 1, place
    slots = joined()
    assert begin_all(slots, "ab") == "a"
    slots.end("a")
    share.later(TURN - 1)
    assert begin_all(slots, "b") == ""
    share.later(2)
    assert begin_all(slots, "bc") == "b"
    # The other one has ended.
    share.offer, share.rivals = {"CPU": 1.0}, 0
    share.later()
    slots.end("b")
    assert begin_all(slots, "cd") == "c"


def test_short_memory_takes_one_run_less(share: FakeShare) -> None:
    slots = joined()
    slots.fewer()
    assert begin_all(slots, "abcd") == "abc"
    slots.expect(2)
    slots.fewer()
    slots.fewer()
    slots.fewer()
    assert begin_all(slots, "efg") == "e"


def test_a_cluster_that_does_not_answer_keeps_its_number(share: FakeShare) -> None:
    slots = joined()
    share.lost = True
    assert begin_all(slots, "abcdef") == "abcd"


def test_a_ray_of_this_launch_alone_asks_nobody(share: FakeShare) -> None:
    slots = Slots(Resources(), cluster({"CPU": 4.0}), shared=True)
    board: Any = None
    slots.join(board)
    slots.expect(9)
    assert begin_all(slots, "abcdef") == "abcd"
    slots.close()
    assert share.asked == []


class _Runs(Searcher):
    """Suggests three runs."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [1, 2, 3]

    def suggest(self, trial_id: str) -> Any:
        return {"run": self.left.pop(0)} if self.left else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


def test_a_search_is_asked_while_there_is_room(share: FakeShare) -> None:
    share.offer = {"CPU": 1.0}
    slots = joined(runs=3)
    search = Limited(_Runs(), slots)
    assert search.suggest("a") == {"run": 1}
    assert search.suggest("b") is None
    search.on_trial_complete("a", {})
    assert search.suggest("b") == {"run": 2}
    share.offer = {"CPU": 2.0}
    share.later()
    assert search.suggest("c") == {"run": 3}
    search.on_trial_complete("b", None, error=True)
    assert search.suggest("d") == Searcher.FINISHED
    ray.cloudpickle.dumps(search)


def test_a_grid_is_asked_while_there_is_room(share: FakeShare, tmp_path: Path) -> None:
    share.offer = {"CPU": 2.0}
    grid = Grid(joined(runs=3))
    space = {"run": tune.grid_search(["a", "b", "c"])}
    tune.register_trainable("nothing", lambda config: None)
    grid.add_configurations(Experiment("grid", "nothing", config=space, storage_path=str(tmp_path)))
    trials = [grid.next_trial() for _ in range(3)]
    assert trials[2] is None
    assert not grid.is_finished()
    grid.on_trial_complete(trials[0].trial_id)
    assert grid.next_trial().config == {"run": "c"}
    grid.on_trial_complete(trials[1].trial_id)
    assert grid.next_trial() is None
    assert grid.is_finished()
    ray.cloudpickle.dumps(grid.get_state())
