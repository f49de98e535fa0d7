"""The mailbox of a lane: a job is trained to its end, or given up after its workers were lost four times."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from raysweep.engine.mailbox import ATTEMPTS, Mailbox


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, timeout=10))


async def still_waits(waiting: asyncio.Task[Any]) -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


def test_jobs_go_one_after_another_to_the_same_workers() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.take("a"))
        assert await still_waits(waiting)
        assert await mailbox.put("first") == 1
        assert await waiting == (1, "first")
        outcome = asyncio.create_task(mailbox.outcome(1))
        assert await still_waits(outcome)
        waiting = asyncio.create_task(mailbox.take("a", 1))
        assert await outcome is None
        assert await mailbox.put("second") == 2
        assert await waiting == (2, "second")

    run(story())


def test_a_job_put_before_the_workers_are_there_waits_for_them() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("early")
        assert await mailbox.take("a") == (1, "early")

    run(story())


def test_one_job_at_a_time() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("first")
        with pytest.raises(RuntimeError, match="job 1 of the lane is still open"):
            await mailbox.put("second")

    run(story())


def test_new_workers_take_up_the_job_of_those_that_died() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("job")
        for group in ("a", "b", "c"):
            assert await mailbox.take(group) == (1, "job")
        waiting = asyncio.create_task(mailbox.take("c", 1))
        assert await mailbox.outcome(1) is None
        # The failures of one job do not count for the next.
        await mailbox.put("next")
        assert await waiting == (2, "next")
        for group in ("d", "e", "f"):
            assert await mailbox.take(group) == (2, "next")

    run(story())


def test_a_job_that_loses_its_workers_too_often_is_given_up_and_the_next_is_trained() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("deadly")
        for attempt in range(ATTEMPTS):
            assert await mailbox.take(f"group {attempt}") == (1, "deadly")
            await mailbox.note(f"trouble {attempt}")
        waiting = asyncio.create_task(mailbox.take("last"))
        message = await mailbox.outcome(1)
        assert message == f"the workers of the run were lost {ATTEMPTS} times; the last time: trouble 3"
        await mailbox.put("next")
        assert await waiting == (2, "next")
        waiting = asyncio.create_task(mailbox.take("last", 2))
        assert await mailbox.outcome(2) is None
        assert await still_waits(waiting)
        waiting.cancel()

    run(story())


def test_the_cause_is_left_out_where_none_is_known() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("troubled")
        await mailbox.take("a")
        await mailbox.note("no space left")
        waiting = asyncio.create_task(mailbox.take("a", 1))
        assert await mailbox.outcome(1) is None
        await mailbox.note("news of no job")
        await mailbox.put("killed")
        assert await waiting == (2, "killed")
        for attempt in range(ATTEMPTS):
            waiting = asyncio.create_task(mailbox.take(f"group {attempt}"))
            assert await still_waits(waiting) == (attempt == ATTEMPTS - 1)
        assert await mailbox.outcome(2) == f"the workers of the run were lost {ATTEMPTS} times"
        waiting.cancel()

    run(story())


def test_workers_that_died_while_they_waited_cost_the_next_job_nothing() -> None:
    """A call of a dead worker still waits; it must not get the job that the living workers need."""

    async def story() -> None:
        mailbox = Mailbox()
        dead = asyncio.create_task(mailbox.take("dead"))
        assert await still_waits(dead)
        living = asyncio.create_task(mailbox.take("living"))
        assert await dead is None
        await mailbox.put("job")
        assert await living == (1, "job")

    run(story())


def test_the_end_of_a_job_is_counted_once() -> None:
    async def story() -> None:
        mailbox = Mailbox()
        await mailbox.put("first")
        await mailbox.take("a")
        first = asyncio.create_task(mailbox.take("a", 1))
        assert await still_waits(first)
        await mailbox.put("second")
        assert await first == (2, "second")
        # A report of the first job says nothing of the second.
        assert await mailbox.take("b", 1) == (2, "second")
        assert await mailbox.outcome(1) is None

    run(story())


def test_workers_whom_nobody_holds_are_let_go_after_a_while() -> None:
    async def story() -> None:
        mailbox = Mailbox(idle=0.05)
        await mailbox.put("job")
        assert await mailbox.take("a") == (1, "job")
        waiting = asyncio.create_task(mailbox.take("a", 1))
        # The trial still measures what was trained.
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await mailbox.rest()
        assert await waiting is None
        assert not await mailbox.hold()
        with pytest.raises(RuntimeError, match="closed"):
            await mailbox.put("late")
        # A worker group that Ray Train has started in the meantime is not needed either.
        assert await mailbox.take("b") is None

    run(story())


def test_workers_whom_the_next_run_takes_in_time_stay() -> None:
    async def story() -> None:
        mailbox = Mailbox(idle=0.2)
        waiting = asyncio.create_task(mailbox.take("a"))
        await mailbox.rest()
        await asyncio.sleep(0.1)
        assert await mailbox.hold()
        await asyncio.sleep(0.3)
        await mailbox.put("job")
        assert await waiting == (1, "job")

    run(story())


def test_a_job_is_trained_to_its_end_even_if_nobody_holds_its_workers() -> None:
    async def story() -> None:
        mailbox = Mailbox(idle=0.05)
        await mailbox.put("job")
        await mailbox.rest()
        await asyncio.sleep(0.2)
        assert await mailbox.take("a") == (1, "job")
        await asyncio.sleep(0.2)
        assert await mailbox.take("a", 1) is None
        assert await mailbox.outcome(1) is None

    run(story())
