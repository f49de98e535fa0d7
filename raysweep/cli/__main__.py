"""The program `raysweep`."""

from __future__ import annotations

import sys

from raysweep.engine.guard import LOST, guard, tell_in_order


def main() -> None:
    """Run the command line; a launch runs in a child of a process that guards it."""
    if sys.argv[1:2] == ["launch"]:
        guard()
    try:
        # Imported late: the guard needs nothing of it.
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
