"""The names of sources in tables: the algorithm and step of each, without seeds.

Runs that start from replicates of one configuration are replicates, so the name of a source is that of all
its replicates.  Sources of other configurations have other names: where algorithm and step are equal, the
second configuration has the head of its digest behind them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raysweep import registry
from raysweep.models.base import ModelConfig
from raysweep.sweep.identity import DIGITS, configuration, digest, safe
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.run import RunSpec
from raysweep.training.seeds import Seeds

HASH = re.compile(r"-(?P<digits>[0-9a-f]{" + str(DIGITS) + r"})\Z")

#: Digits of a configuration behind a name that another one has.
_TOLD = 6


class Labels:
    """The names of the sources of one sweep file."""

    def __init__(self) -> None:
        #: The first configuration of each name.
        self._first: dict[str, str] = {}

    def of_run(self, run: RunSpec, step: int) -> str:
        """Return the name of a run of the sweep file at a step."""
        return self._apart(_plain(run.run_id, run.model, run.seeds, step), run.configuration)

    def of_record(self, run: RunLedger, content: Mapping[str, Any], step: int, *, sweep: str = "") -> str:
        """Return the name of a run with a recorded `content` at a step, behind that of its `sweep`, if given.

        Raises `KeyError`, `TypeError` or `ValidationError` for a content that is none of a run.
        """
        model: ModelConfig = registry.models.decode(content["model"])
        plain = _plain(run.run_id, model, Seeds.of(content["seed"]), step)
        own = configuration(content, self._source(run, content.get("source")))
        return self._apart(f"{sweep}/{plain}" if sweep else plain, own)

    def of_folder(self, name: str, content: Mapping[str, str]) -> str:
        """Return the name of a model's folder that is no run's: that of the folder, if one content has it."""
        return self._apart(name, digest(content))

    def _source(self, run: RunLedger, source: Mapping[str, Any] | None) -> Any:
        """Return name and optimizer of what a recorded run starts from, as `Source.told` has them.

        Of a state that is known by its weights alone, everything counts, seeds too.
        """
        ledger = Ledger(run.sweep_directory)
        head = f"-{source['run'][:DIGITS]}" if source is not None and "run" in source else None
        above = next((run_id for run_id in ledger.run_ids() if head and run_id.endswith(head)), None)
        record = None if above is None else ledger.open(above).identity()
        if source is None or above is None or record is None:
            return source
        name = self.of_record(ledger.open(above), record.content, source["step"])
        return [name, "keep" if "kept" in source else "fresh"]

    def _apart(self, name: str, own: str) -> str:
        return name if self._first.setdefault(name, own) == own else f"{name} {own[:_TOLD]}"


def _plain(run_id: str, model: ModelConfig, seeds: Seeds, step: int) -> str:
    """Return a run's id without its model, its seeds and its identity, so its algorithm; and the step."""
    head = HASH.sub("", run_id).removesuffix(f"-{safe(seeds.label)}").removeprefix(f"{safe(model.label)}-")
    return f"{head}@{step}"
