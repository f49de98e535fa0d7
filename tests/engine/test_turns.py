"""Longer turns on a processor."""

import ctypes
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from raysweep.engine.turns import ATTRIBUTES, TURN, long_turns

#: The number of the call `sched_getattr`.
GET = {"x86_64": 315, "aarch64": 275}.get(platform.machine())

pytestmark = pytest.mark.skipif(sys.platform != "linux" or GET is None, reason="only Linux has such turns")


def attributes():
    """Return policy, niceness and turn of the calling thread, as the system has them."""
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(GET, 0, found, ATTRIBUTES.size, 0) == 0
    _, policy, _, niceness, _, turn, _, _ = ATTRIBUTES.unpack(found.raw)
    return policy, niceness, turn


def linux():
    return tuple(map(int, platform.release().split(".")[:2]))


def in_a_thread(work):
    """Return what `work` returns in a thread of its own, which ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@pytest.mark.skipif(linux() < (6, 12), reason="older ones grant no turns")
def test_a_thread_gets_long_turns_and_others_keep_theirs():
    def work():
        long_turns()
        return attributes()

    before = attributes()
    assert in_a_thread(work) == (os.SCHED_OTHER, before[1], TURN)
    assert attributes() == before


def test_niceness_stays():
    def work():
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        long_turns()
        return attributes()[:2]

    assert in_a_thread(work) == (os.SCHED_OTHER, 7)


def test_other_policies_stay():
    def work():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        long_turns()
        return attributes()[0]

    assert in_a_thread(work) == os.SCHED_BATCH
