"""The notice board: later news is laid over earlier news, and its process stays small."""

from __future__ import annotations

import subprocess
import sys

from raysweep.engine.board import News, _Board
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
    assert board.stop_requested("run")
    assert not board.stop_requested("other")
    board.begin("run")
    assert not board.stop_requested("run")
    board.request_stop(None)
    board.begin("run")
    assert board.stop_requested("run")


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


def test_the_processes_that_only_pass_things_on_do_not_import_torch() -> None:
    heavy = {"torch", "pandas", "ray.train", "ray.data", "raysweep.sweep"}
    code = (
        "import sys, raysweep.engine.board, raysweep.engine.mailbox; "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
