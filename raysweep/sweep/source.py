"""The checkpoint that a run starts from: its place, and its part of the run's identity.

A state is identified by the sha256 of its weights, and of the optimizer's state where that is kept
(`raysweep.training.start.state_content`).  A run of the same sweep may not be trained yet when the sweep is
planned.  It is therefore identified by its own identity and the step, which determine its weights bitwise on
one kind of processor.  So a run has one identity before and after its source is trained, and in all sweep
files that share a ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from raysweep.registry import Config
from raysweep.remote import path_of

if TYPE_CHECKING:
    from raysweep.sweep.ledger import RunLedger
    from raysweep.training.start import Start


class Source(Config):
    """A checkpoint that a run starts from.

    It is that of step `step` of run `run`, in the sweep `sweep` of the same storage (None: the run's own
    sweep), or the one in `folder`.  `label` names its configuration and step without seeds, so runs that
    start from replicates are replicates (`raysweep.sweep.labels`).  `content` identifies the state.
    """

    sweep: str | None = None
    run: str | None = None
    step: int | None = None
    folder: str | None = None
    label: str
    optimizer: Literal["keep", "fresh"] = "fresh"
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """RUN@STEP, SWEEP/RUN@STEP or the folder."""
        if self.folder is not None:
            return self.folder
        return f"{'' if self.sweep is None else f'{self.sweep}/'}{self.run}@{self.step}"

    @property
    def own(self) -> str | None:
        """The id of the run of the same sweep that is started from; None for any other source."""
        return self.run if self.sweep is None else None

    @property
    def identifying(self) -> Mapping[str, Any]:
        """The plain data that is part of the run's identity."""
        return self.content | ({"kept": "optimizer"} if self.optimizer == "keep" else {})

    @property
    def told(self) -> list[str]:
        """The label and what becomes of the optimizer, which say without seeds what is started from."""
        return [self.label, self.optimizer]

    def ledger(self, run: RunLedger) -> RunLedger | None:
        """Return the ledger of the source's run, given that of the run that starts there; or None."""
        if self.run is None:
            return None
        sweep = run.sweep_directory if self.sweep is None else run.storage / self.sweep
        return type(run)(sweep / run.directory.parent.name / self.run)

    def there(self, run: RunLedger) -> bool:
        """Return whether the state can be read now, given the ledger of the run that starts from it."""
        source = self.ledger(run)
        if source is None:
            return path_of(self.folder or "").is_dir()
        step = self.step or 0
        return source.checkpoint(step) is not None and step in source.steps_on_disk()

    def start(self, run: RunLedger) -> Start:
        """Return the state on disk, given the ledger of the run that starts from it."""
        from raysweep.training.start import Start

        source = self.ledger(run)
        folder = path_of(self.folder or "") if source is None else source.checkpoint_directory(self.step or 0)
        # The weights of a run of the same sweep are those of its identity, whichever they are.
        content = None if self.own is not None else self.content
        return Start(folder, keep=self.optimizer == "keep", content=content)
