"""The program `raysweep`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from contextlib import ExitStack, suppress

from raysweep.engine.guard import LOST, guard, tell_in_order

#: New objects after which a command looks for garbage among them: more than those of ten thousand runs.
_YOUNG = 2_000_000


def main() -> None:
    """Run the command line; a launch runs in a child of a process that guards it."""
    _open_closed()
    # numpy is imported later.  The many small products of a report gain next to nothing from threads, which
    # wait busily; and with one, last digits are the same for any number of processors.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    launches = sys.argv[1:2] == ["launch"] and not {"--help", "-h"} & set(sys.argv)
    if not launches:
        # What a command reads of thousands of runs is no garbage, so it seldom looks for some.
        gc.set_threshold(_YOUNG)
    else:
        guard()
        if sys.argv[2:]:
            # The imports take seconds.
            print("reading the sweep and its records", file=sys.stderr, flush=True)
    try:
        with ExitStack() as stack:
            # Imported late: the guard needs nothing of them.
            if launches:
                from raysweep.engine import forks

                stack.callback(forks.close_fork_server)
                forks.begin_early(sys.argv[2:])
            from raysweep.cli import app

            app.main()
    except SystemExit as end:
        if end.code == LOST:
            tell_in_order()
        if isinstance(end.code, int):
            _leave(end.code)
        raise
    except BaseException:
        tell_in_order()
        raise


def _open_closed() -> None:
    """Let words to a stream that was closed from the start (`>&-`) go nowhere.

    Otherwise they are an error, and the next file that is opened gets the stream's number.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # open to the end


def _leave(code: int) -> None:
    """End this process without taking its interpreter down.

    Threads of Ray, MLflow and torch may still be at work after a launch.  One that frees a tensor while the
    interpreter is taken down aborts the process, and its exit code is lost.  And what a command has read of
    thousands of runs would be freed piece by piece, which takes a second.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as at any end: other threads are waited for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
