"""The progress of drawing many sentences: a bar on a terminal, lines in a pipe."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raysweep.cli.output import Lines, console, remarks_of_ray, say
from raysweep.sweep.units import duration


@contextmanager
def shown(again: str, output: Path | None) -> Iterator[BarView | LineView]:
    """Show the progress of a generation, and say at Ctrl-C how it goes on."""
    errors = console(stderr=True)
    view = BarView(errors) if errors.is_terminal else LineView(errors)
    try:
        with view, remarks_of_ray(Path(os.devnull) if output is None else output / "ray.log"):
            yield view
    except KeyboardInterrupt:
        say(f"interrupted{again}")
        raise typer.Exit(130) from None


class BarView:
    """A view for a terminal: a bar with the time that is left."""

    def __init__(self, target: Console) -> None:
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("sentences"), TimeRemainingColumn(), console=target
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> BarView:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show the number of sentences that are done."""
        self._progress.update(self._task, completed=done, total=total)


class LineView(Lines):
    """A view for a pipe: a plain line for every tenth of the sentences, and a sign of life once a minute."""

    def __init__(self, target: Console) -> None:
        super().__init__(target)
        self._start = time.monotonic()
        self._tenth = -1

    def __call__(self, done: int, total: int) -> None:
        """Print the number of sentences that are done, if another tenth is done or a minute has passed."""
        now = time.monotonic()
        if done == 0:
            self._start = now
        tenth = 10 * done // total
        if tenth == self._tenth and not self.silent:
            return
        self._tenth = tenth
        spent = now - self._start
        left = f", about {duration(spent * (total - done) / done)} left" if 0 < done < total else ""
        self.say(f"{done:,} of {total:,} sentences, {duration(spent)} so far{left}")
