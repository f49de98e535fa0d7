"""The notice board: later news is laid over earlier news, and its process stays small."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import ray

from raysweep.engine import board as module
from raysweep.engine.board import Answer, Line, News, _Board, pause
from raysweep.engine.outcome import Trouble
from raysweep.evaluation.metric import Metric

METRIC = Metric(name="loss", value=1.0, standard_error=0.1, n=3, unit="nats")


def test_later_news_is_laid_over_earlier_news() -> None:
    board = _Board()
    board.begin("run")
    board.post("run", News(state="training", step=3, tokens_per_second=10.0).packed())
    board.post("run", News(step=4).packed())
    board.post("run", News(metrics=[METRIC], evaluated=2).packed())
    news = {run_id: News.unpacked(packed) for run_id, packed in board.read(0)[1].items()}
    assert news == {
        "run": News(state="training", step=4, tokens_per_second=10.0, metrics=[METRIC], evaluated=2)
    }


def test_a_reader_gets_what_it_has_not_read() -> None:
    board = _Board()
    for run_id in ("a", "b"):
        board.begin(run_id)
    mark, news = board.read(0)
    assert set(news) == {"a", "b"}
    assert board.read(mark) == (mark, {})
    board.post("b", {"step": 3})
    later, news = board.read(mark)
    assert news == {"b": {"state": "starting", "step": 3}}
    # Who has read less gets more.
    assert set(board.read(0)[1]) == {"a", "b"}
    board.post("a", {"state": "evaluating"})
    board.request_stop(None)
    assert board.read(later)[1] == {"a": {"state": "unfinished"}}


def test_a_board_that_was_restarted_tells_all_that_it_knows() -> None:
    """The marks of the new actor are beyond those of the lost one."""
    lost = _Board()
    lost.begin("a")
    mark, _ = lost.read(0)
    board = _Board()
    board.begin("b")
    assert board.read(mark)[1] == {"b": {"state": "starting"}}


def test_troubles_are_those_of_runs_that_have_one() -> None:
    board = _Board()
    full = Trouble("full", "no space left")
    board.begin("a")
    board.post("b", News(state="unfinished", trouble=full).packed())
    assert board.troubles() == {"b": full}


def test_trouble_is_forgotten_when_a_run_begins_again() -> None:
    board = _Board()
    board.begin("run")
    board.post("run", News(state="unfinished", trouble=Trouble("full", "no space left")).packed())
    board.begin("run")
    assert News.unpacked(board.read(0)[1]["run"]) == News(state="starting")


def test_a_run_that_begins_again_is_no_longer_asked_to_stop() -> None:
    board = _Board()
    board.request_stop("run")
    assert board.tell("run", {}) == (True, 0)
    assert board.tell("other", {}) == (False, 0)
    board.begin("run")
    assert board.tell("run", {}) == (False, 1)
    board.request_stop(None)
    board.begin("run")
    assert board.tell("run", {}) == (True, 1)


def test_at_the_end_of_a_launch_no_run_is_said_to_be_evaluated() -> None:
    """Trials go on for a moment after the request, and training takes its time for a checkpoint."""
    board = _Board()
    for run_id, state in {"a": "evaluating", "b": "training", "c": "done"}.items():
        board.post(run_id, {"state": state})
    board.request_stop(None)
    states = [{run_id: news["state"] for run_id, news in board.read(0)[1].items()}]
    board.post("b", {"state": "unfinished"})
    board.post("b", {"state": "evaluating", "step": 7})
    board.post("a", {"state": "done"})
    states.append({run_id: news["state"] for run_id, news in board.read(0)[1].items()})
    assert states == [
        {"a": "unfinished", "b": "training", "c": "done"},
        {"a": "done", "b": "unfinished", "c": "done"},
    ]
    assert board.read(0)[1]["b"]["step"] == 7


def test_runs_at_work_are_those_that_a_trial_holds() -> None:
    board = _Board()
    for run_id, state in {"a": "training", "b": "evaluating", "c": "done", "d": "failed"}.items():
        board.begin(run_id)
        board.post(run_id, {"state": state})
    board.begin("e")
    assert board.at_work() == 3
    assert board.training() == 1
    for run_id in ("a", "c"):
        board.leave(run_id)
    assert board.at_work() == 2
    assert [board.read(0)[1][run_id]["state"] for run_id in ("a", "c")] == ["unfinished", "done"]


def test_a_call_tells_news_and_asks_in_one() -> None:
    board = _Board()
    board.begin("run")
    assert board.tell("run", {"state": "training", "step": 3}) == (False, 1)
    mark, news = board.read(0)
    assert news == {"run": {"state": "training", "step": 3}}
    # To ask is no news.
    board.request_stop("run")
    assert board.tell("run", {}) == (True, 1)
    assert board.read(mark) == (mark, {})
    # A run that trains is at work on a board that was restarted, too.
    restarted = _Board()
    assert restarted.tell("run", {"state": "training"}) == (False, 1)


def test_all_runs_together_call_no_more_than_so_often() -> None:
    for at_work in (1, 100, 250, 1000, 10_000):
        assert pause(at_work) >= 1.0
        assert at_work / pause(at_work) <= 250.0


class FakeBoard:
    """Takes the news of a line, and lets its calls be answered one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, News]] = []
        self.waits: list[float] = []
        self._answers: list[Answer | Exception] = []
        self._called, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        fake = self

        class Ended(threading.Event):
            """An event that notes how long it is waited for, and does not wait."""

            def wait(self, timeout: float | None = None) -> bool:
                if timeout is None:
                    return super().wait()
                fake.waits.append(timeout)
                return self.is_set()

        monkeypatch.setattr(module.threading, "Event", Ended)

    def send(self, run_id: str, news: News) -> None:
        self.calls.append((run_id, news))
        self._called.release()

    def post(self, run_id: str, news: News) -> None:
        self.calls.append((run_id, news))

    def answer(self, asked: None) -> Answer:
        self._answered.acquire()
        found = self._answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def called(self) -> None:
        assert self._called.acquire(timeout=60)

    def answers(self, answer: Answer | Exception) -> None:
        self._answers.append(answer)
        self._answered.release()


def test_a_line_tells_the_newest_news_and_one_call_waits_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However slow the board is, a run has one call there, and one call tells all that comes meanwhile."""
    fake = FakeBoard(monkeypatch)
    board: Any = fake
    line = Line(board, "run")
    fake.called()
    line.say(News(step=3, tokens_per_second=10.0))
    line.say(News(step=4))
    assert fake.calls == [("run", News(state="training"))]
    assert not line()
    fake.answers(Answer(stop=False, at_work=1000))
    fake.called()
    assert fake.calls[1:] == [("run", News(step=4, tokens_per_second=10.0))]
    # A board that is being restarted stops nobody.
    fake.answers(ray.exceptions.GetTimeoutError())
    fake.called()
    assert not line()
    fake.answers(Answer(stop=True, at_work=1))
    fake.called()
    assert line()
    assert fake.waits == [0.0, pause(1000), 2.0, pause(1)]
    assert fake.calls[2:] == [("run", News())] * 2
    line.say(News(state="unfinished"))
    line.close()
    assert fake.calls[4:] == [("run", News(state="unfinished"))]
    # What others say of the run later stands.
    line.say(News(state="training"))
    fake.answers(Answer(stop=False, at_work=1))
    line._thread.join(60)
    assert not line._thread.is_alive()
    assert len(fake.calls) == 5


def test_the_processes_that_only_pass_things_on_do_not_import_torch() -> None:
    heavy = {"torch", "pandas", "ray.train", "ray.data", "raysweep.sweep"}
    code = (
        "import sys, raysweep.engine.board, raysweep.engine.mailbox; "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
