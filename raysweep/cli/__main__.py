"""The program `raysweep`."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from raysweep.engine.guard import LOST, guard, tell_in_order


def main() -> None:
    """Run the command line; a launch runs in a child of a process that guards it."""
    launches = sys.argv[1:2] == ["launch"]
    if launches:
        guard()
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
        raise
    except BaseException:
        tell_in_order()
        raise


if __name__ == "__main__":
    main()
