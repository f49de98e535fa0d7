"""The program `raysweep`."""

from __future__ import annotations

import sys

from raysweep.engine.guard import guard


def main() -> None:
    """Run the command line; a launch runs in a child of a process that guards it."""
    if sys.argv[1:2] == ["launch"]:
        guard()
    # Imported late: the guard needs nothing of it.
    from raysweep.cli import app

    app.main()


if __name__ == "__main__":
    main()
