"""Longer turns on a processor for threads that compute.

Where evaluations share the processors of training (`raysweep.engine.choice`), more threads compute than there
are processors.  Linux lets them take turns of some milliseconds, about the time of a training step, and each
turn begins with caches that another one has filled.  From Linux 6.12 on a thread may ask for longer turns.
That changes no share, and threads that ask for nothing still come in between when they wake up.  Where each
thread has a processor for itself it changes nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress

#: Nanoseconds of a turn: the most that Linux grants.
TURN = 100_000_000

#: `sched_attr` up to `sched_period`: size, policy, flags, niceness, priority, runtime, deadline, period.
ATTRIBUTES = struct.Struct("=IIQiIQQQ")
#: The number of the call `sched_setattr`, for which the C libraries in use have no function.
_CALL = {"x86_64": 314, "aarch64": 274}


def long_turns() -> None:
    """Ask the system for long turns for the calling thread, and the threads that it starts from now on.

    It is a wish: elsewhere than on Linux, on an older one, or where it is forbidden, nothing changes.
    """
    number = _CALL.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    with suppress(OSError):
        # Both are those of the calling thread, on Linux.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            niceness = os.getpriority(os.PRIO_PROCESS, 0)
            wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, TURN, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, ctypes.create_string_buffer(wanted), 0)
