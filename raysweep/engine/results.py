"""The results of a sweep, in Python: of a launch, or of a sweep that was launched before.

Nothing here needs Ray.
"""

from __future__ import annotations

import base64
import io
import os
from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep import FailureRecord, Sweep, load_sweep
from raysweep.sweep.made import with_made
from raysweep.sweep.run_state import run_states
from raysweep.sweep.starts import failures, starts, unfinished
from raysweep.sweep.stored import find_stored
from raysweep.sweep.tidy import tidy
from raysweep.sweep.tidy import wide as _wide
from raysweep.sweep.units import count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from raysweep.report import Verdict


class Figures(dict[str, "Figure"]):
    """Figures of a report by name; a notebook shows them all, one below the other."""

    def __missing__(self, name: str) -> Figure:
        raise KeyError(f"no figure '{name}'{suggest(name, self)}; there are: {', '.join(self) or 'none'}")

    def _repr_html_(self) -> str:
        return "\n".join(f"<p>{escape(name)}</p>{_image(figure)}" for name, figure in self.items())


def _image(figure: Figure) -> str:
    """Return a figure as an image inside a page, with two of its points for one of the page."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=220)
    code, wide = base64.b64encode(buffer.getvalue()).decode(), 110 * figure.get_figwidth()
    return f'<img width="{wide:.0f}" src="data:image/png;base64,{code}">'


class Verdicts(list["Verdict"]):
    """Verdicts in the order of a sweep file; a notebook shows their sentences."""

    def _repr_html_(self) -> str:
        return "\n".join(["<ul>", *(f"<li>{escape(one.sentence)}</li>" for one in self), "</ul>"])


@dataclass(frozen=True, kw_only=True)
class Results:
    """The results of a sweep."""

    sweep: Sweep
    #: The last failure of each failed run, by run id; of a run that starts from a failed one it names that.
    failures: dict[str, FailureRecord]
    #: Runs that neither finished nor failed, and the trouble that left them so, as far as it is known; the
    #: next launch continues them.
    unfinished: dict[str, str]
    #: Runs that this launch trained or evaluated; empty if everything was there already.
    worked_on: tuple[str, ...] = ()
    #: False if the tracking server could not take everything; the next launch fills the gap.
    tracked: bool = True

    def __repr__(self) -> str:
        left = f"{len(self.failures)} failed, {len(self.unfinished)} unfinished"
        return f"Results({self.sweep.name!r}: {count(len(self.sweep.runs), 'run')}, {left})"

    def to_frame(self, *, wide: bool = False) -> pd.DataFrame:
        """Return the tidy table: one row per run x milestone x metric (`raysweep.sweep.tidy`).

        With `wide`, one row per run x milestone instead, with a column for each metric and one, named
        METRIC_se, for its standard error where it has one.
        """
        frame = tidy(self.sweep.ledger(), self.sweep)
        return _wide(frame) if wide else frame

    def samples(self) -> pd.DataFrame:
        """Return the samples of the search of the sweep's file and of its Tuners, the best of each first.

        Columns: `search` ("Search" or "Tuner"), `metric`, `mode`, `sample` (its number), the fields that were
        set, `value` (the metric's mean over the runs of the sample), `standard_error`, `step` (that of the
        value), `state`, `run_ids`.  A sample that was stopped stands behind those that came to their end.

            best = rs.open("search").samples().iloc[0]

        Raises `ConfigError` where there was no search.
        """
        import pandas as pd

        from raysweep.report.best import rankings

        found = rankings(self.sweep)
        if not found:
            raise ConfigError(
                f"sweep '{self.sweep.name}' has no samples: its file has no search, and no Tuner with a "
                "metric has sampled it; to_frame() has its runs"
            )
        paths = dict.fromkeys(path for ranking in found for path in ranking.paths)
        rows = [
            {
                "search": ranking.what,
                "metric": ranking.metric,
                "mode": ranking.mode,
                "sample": trial.index,
                **{path: trial.settings.get(path) for path in paths},
                "value": trial.value,
                "standard_error": trial.standard_error,
                "step": trial.step or None,
                "state": trial.state,
                "run_ids": [spec.run_id for spec in trial.runs],
            }
            for ranking in found
            for trial in ranking.samples
        ]
        return pd.DataFrame(rows)

    def verdicts(self) -> Verdicts:
        """Return the verdicts on the sweep's claims, in the order of its file.

        A verdict has its `outcome`, such as "supported", the `sentence` that a launch prints, and in `main`
        the effect: `value`, the ends `low` and `high` of its 95 % interval, and `p`.  `p_corrected` is that
        for all claims together.

            for verdict in rs.launch(sweep).verdicts():
                print(verdict.sentence)
        """
        from raysweep.report import sweep_verdicts  # needs matplotlib, which a launch does without

        return Verdicts(sweep_verdicts(self.sweep))

    def plot(self) -> Figures:
        """Return the figures of the report, by name, as matplotlib's figures on white, each with its legend.

        figures = rs.open("scaling").plot()
        figures["headline-1"].savefig("figure.pdf")
        """
        from raysweep.report.write import figures_of

        return Figures(figures_of(self.sweep, self.to_frame()))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdicts, and the last checkpoint of each kind of run."""
        import pandas as pd

        from raysweep.report import sweep_verdicts
        from raysweep.report.summary import summary

        frame = self.to_frame()
        counts = Counter(state.state for state in run_states(self.sweep))
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        parts = [f"<p><b>{escape(self.sweep.name)}</b>: {states}</p>"]
        found_out = Verdicts(sweep_verdicts(self.sweep, frame))
        parts += [found_out._repr_html_()] if found_out else []
        found = summary(frame)
        if found.rows:
            table = pd.DataFrame(found.rows, columns=found.headings)
            parts += [f"<p>{escape(found.title)}:</p>", table.to_html(index=False, border=0)]
        parts += [
            f"<p>{escape(run_id)} failed: {escape(failure.message)}</p>"
            for run_id, failure in self.failures.items()
        ]
        return "\n".join(parts)


def open_results(name: str | os.PathLike[str], *, storage: str | os.PathLike[str] | None = None) -> Results:
    """Return the results of a sweep that was launched before, as they stand; it may still be running.

    Runs that a Tuner has made of the sweep are among its own.

    `name` is that of a sweep in the `storage` ($RAYSWEEP_STORAGE or ./results by default), or a sweep file.
    Raises `ConfigError` if there is neither.

        rs.open("scaling").to_frame(wide=True)
    """
    text = os.fspath(name)
    is_file = text.endswith((".yaml", ".yml")) or os.path.isfile(text)
    sweep = with_made(load_sweep(text, storage=storage) if is_file else find_stored(text, storage))
    waits = starts(sweep)
    left = unfinished(sweep, waits)
    return Results(sweep=sweep, failures=failures(sweep, waits), unfinished=dict.fromkeys(left, ""))
