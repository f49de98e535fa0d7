"""Longer turns on a processor."""

import ctypes
import os
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from raysweep.engine.turns import ATTRIBUTES, TURN, long_turns
from raysweep.engine.worker import prepare

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
    """Return major and minor version of the system."""
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups()))


def in_a_thread(work):
    """Return what `work` returns in a thread of its own, which ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


LATER = pytest.mark.skipif(sys.platform != "linux" or linux() < (6, 12), reason="others grant no turns")


@LATER
def test_who_computes_for_an_engine_asks_for_them():
    def work():
        threads = torch.get_num_threads()
        prepare(threads)
        return attributes()[2]

    assert in_a_thread(work) == TURN


@LATER
def test_a_thread_gets_long_turns_and_others_keep_theirs():
    def work():
        long_turns()
        return attributes()

    before = attributes()
    assert in_a_thread(work) == (os.SCHED_OTHER, before[1], TURN)
    assert attributes() == before


def test_niceness_stays():
    def work():
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, before + 1)
        long_turns()
        return attributes()[:2], (os.SCHED_OTHER, before + 1)

    found, wanted = in_a_thread(work)
    assert found == wanted


def test_other_policies_stay():
    def work():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        long_turns()
        return attributes()[0]

    assert in_a_thread(work) == os.SCHED_BATCH
