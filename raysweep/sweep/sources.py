"""From `init_from` to sources: which checkpoint a point of the grid starts from, and whether it fits.

`run` is RUN@STEP, SWEEP/RUN@STEP or a folder.  RUN is first looked for among the runs of the sweep file,
which may themselves start from others, then in the ledger of the sweep's name.  Another SWEEP is one of the
storage.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysweep import registry
from raysweep.errors import ConfigError, RaysweepError
from raysweep.models.base import ModelConfig
from raysweep.registry import suggest
from raysweep.sweep.architecture import folder_misfit, misfit
from raysweep.sweep.config import LanguageCache
from raysweep.sweep.explain import one_line
from raysweep.sweep.identity import DIGITS
from raysweep.sweep.labels import HASH, Labels
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.records import RunRecord
from raysweep.sweep.run import RunSpec
from raysweep.sweep.source import Source
from raysweep.training.checkpoint import STATE
from raysweep.training.start import InitFrom, file_content, state_content

_REFERENCE = re.compile(r"(?:(?P<sweep>[^/@]+)/)?(?P<run>[^/@]+)@(?P<step>[^/@]*)\Z")

#: Most candidates that an error lists.
_LISTED = 6


@dataclass(eq=False)
class Starting:
    """A point that starts from a run: its spec without the source.

    `problem(field, message)` takes what is wrong with its `init_from`, `add(spec)` its run.
    """

    spec: RunSpec
    init: InitFrom
    #: Folder from which a relative path starts.
    folder: Path
    problem: Callable[[str, str], None]
    add: Callable[[RunSpec], None]

    def report(self, message: str) -> None:
        """Note a problem of the field that a message begins with, or of `run`."""
        keeps = message.startswith("optimizer: ")
        self.problem("optimizer" if keeps else "run", message.removeprefix("optimizer: "))


class Sources:
    """Finds the sources of one sweep file; `storage` is the root of all results, `name` the sweep's."""

    def __init__(self, storage: Path, name: str, languages: LanguageCache) -> None:
        self._storage, self._name, self._languages = storage, name, languages
        self._labels = Labels()

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The ids of the runs in the ledger of the sweep's name."""
        return frozenset(Ledger(self._storage / self._name).run_ids())

    def resolve(self, starting: Iterable[Starting], runs: Callable[[], Sequence[RunSpec]]) -> None:
        """Give each point its source and add its run; points with problems are left out.

        `runs` are the runs of the file so far, with all their milestones.  Runs follow those they start from.
        """
        left, found = list(starting), list[tuple[Starting, RunSpec]]()
        while left:
            known = list(runs())
            ready = [each for each in left if self._names_one_of(known, each)]
            if not ready:
                # A name that no run of the file can have is one of the storage, or a folder.
                ready = [each for each in left if not any(self._may_name(each, other) for other in left)]
            if not ready:
                ready = [each for each in left if self._own_pattern(each.init.run) in self._stored]
            if not ready:
                self._report_circles(left)
                return
            failed = []
            for each in ready:
                left.remove(each)
                try:
                    source = self._source(each, known)
                except RaysweepError as error:
                    each.report(one_line(str(error)))
                    failed.append(each)
                    continue
                spec = replace(each.spec, source=source)
                found.append((each, spec))
                each.add(spec)
            known = list(runs())
            # A problem is reported once, and not again for what starts from the run that has it.
            while doomed := [each for each in left if self._waits_in_vain(each, failed, known)]:
                failed += doomed
                left = [each for each in left if each not in doomed]
        for each, spec in found:
            self._check_unique(each, spec, known)

    def _names_one_of(self, known: Sequence[RunSpec], each: Starting) -> bool:
        """Return whether a point names one of the runs of the file that are known."""
        pattern = self._own_pattern(each.init.run)
        return pattern is not None and any(fnmatch.fnmatchcase(run.run_id, pattern) for run in known)

    def _own_pattern(self, text: str) -> str | None:
        """Return the pattern of a run of the own sweep; None for a reference to anything else."""
        named = _reference(text)
        return named["run"] if named is not None and named["sweep"] in (None, self._name) else None

    def _waits_in_vain(self, each: Starting, failed: Sequence[Starting], known: Sequence[RunSpec]) -> bool:
        """Return whether a point can only name runs that have a problem."""
        return any(self._may_name(each, other) for other in failed) and not self._names_one_of(known, each)

    def _may_name(self, each: Starting, other: Starting) -> bool:
        """Return whether a point may start from the run of another point, whose identity is not known yet."""
        pattern = self._own_pattern(each.init.run)
        if pattern is None:
            return False
        # An identity that is written out may be the one to come, though not the point's own: that contains
        # its source's.
        written = HASH.search(pattern)
        if written is not None and other is each:
            return False
        head = HASH.sub("", other.spec.run_id)
        digits = written["digits"] if written is not None else "0" * DIGITS
        return fnmatch.fnmatchcase(f"{head}-{digits}", pattern)

    def _report_circles(self, left: Sequence[Starting]) -> None:
        """Report points that start from themselves or, in a circle, from one another."""
        for each in left:
            others = [other for other in left if other is not each]
            if not any(self._may_name(each, other) for other in others):
                each.report(f"'{each.init.run}' is this run itself; name another run")
                continue
            names = dict.fromkeys(HASH.sub("", other.spec.run_id) for other in left)
            each.report(
                f"'{each.init.run}' leads back to this run: {_some(list(names))} start from one another; let "
                "one of them start from drawn weights (init_from: null)"
            )

    def _check_unique(self, each: Starting, spec: RunSpec, runs: Sequence[RunSpec]) -> None:
        """Report a pattern that matches, beside its source, a run that was not known when it was resolved.

        The run itself does not count, for no run starts from itself.
        """
        pattern = self._own_pattern(each.init.run)
        if pattern is None:
            return
        ids = [run.run_id for run in runs if fnmatch.fnmatchcase(run.run_id, pattern)]
        others = [run_id for run_id in ids if run_id != spec.run_id]
        if len(others) > 1:
            each.report(_ambiguous(pattern, others))

    def _source(self, each: Starting, known: Sequence[RunSpec]) -> Source:
        """Return the source of a point; raises `ConfigError` for one that is not there or does not fit."""
        named = _reference(each.init.run)
        if named is None:
            return self._of_folder(each)
        step = _step(named)
        if named["sweep"] in (None, self._name):
            own = [run for run in known if fnmatch.fnmatchcase(run.run_id, named["run"])]
            if len(own) > 1:
                raise ConfigError(_ambiguous(named["run"], [run.run_id for run in own]))
            if own:
                return self._of_run(each, own[0], step)
            return self._of_ledger(each, None, named["run"], step, [run.run_id for run in known])
        return self._of_ledger(each, named["sweep"], named["run"], step, [])

    def _of_run(self, each: Starting, run: RunSpec, step: int) -> Source:
        if not run.trains:
            raise ConfigError(f"'{run.run_id}' is not trained, so it has no weights; name a run that is")
        if step not in run.milestones:
            listed = ", ".join(map(str, run.milestones))
            raise ConfigError(
                f"run {run.run_id} has no milestone {step}, only {listed}; name one of these, or add {step} "
                "to pretrain.milestones"
            )
        language = self._languages.get(run.language)
        self._check(each, f"{run.run_id}@{step}", run.model, run.algorithm.kind, language)
        return Source(
            run=run.run_id,
            step=step,
            label=self._labels.of_run(run, step),
            optimizer=each.init.optimizer,
            content={"run": run.training_identity, "step": step},
        )

    def _of_ledger(
        self, each: Starting, sweep: str | None, pattern: str, step: int, others: Sequence[str]
    ) -> Source:
        """Return a source in a ledger of the storage; `others` are the runs of the sweep file."""
        ledger = Ledger(self._storage / (sweep or self._name))
        there = ledger.run_ids()
        matching = [run_id for run_id in there if fnmatch.fnmatchcase(run_id, pattern)]
        where = f"sweep '{sweep}' of {self._storage}" if sweep else f"this sweep ('{self._name}')"
        if not matching:
            candidates = list(dict.fromkeys([*others, *there]))
            listed = suggest(pattern, candidates) or (
                f"; its runs: {_some(candidates)}" if candidates else ""
            )
            if sweep and not there:
                listed = "; nothing of it is stored there: launch it first, or give its --storage"
            raise ConfigError(f"'{pattern}': no such run in {where}{listed}")
        if len(matching) > 1:
            raise ConfigError(_ambiguous(pattern, matching))
        run = ledger.open(matching[0])
        record = run.checkpoint(step)
        if record is None:
            steps = ", ".join(str(r.step) for r in run.checkpoint_records())
            has = f"; it has steps {steps}" if steps else ""
            raise ConfigError(f"run {run.run_id} of {where} has no checkpoint of step {step} yet{has}")
        stored, label = self._check_recorded(each, run, step, sweep or "")
        place = run.checkpoint_directory(step)
        keep = each.init.optimizer == "keep"
        return Source(
            sweep=sweep,
            run=run.run_id,
            step=step,
            label=label,
            optimizer=each.init.optimizer,
            content=file_content(record.files, place, keep=keep)
            if sweep
            else {"run": stored.identity, "step": step},
        )

    def _check_recorded(self, each: Starting, run: RunLedger, step: int, sweep: str) -> tuple[RunRecord, str]:
        """Check that a point fits a run that recorded its configuration; return the record and a label."""
        record = run.identity()
        if record is None:
            raise ConfigError(f"{run.identity_path} is missing or damaged; launch its sweep again")
        content = record.content
        try:
            model: ModelConfig = registry.models.decode(content["model"])
            language = self._languages.get(registry.languages.decode(record.language))
            kind = str(content["algorithm"]["kind"])
            label = self._labels.of_record(run, content, step, sweep=sweep)
        except (ValidationError, KeyError, TypeError) as error:
            raise ConfigError(f"{run.identity_path}: does not say which model it is: {error}") from error
        self._check(each, f"{run.run_id}@{step}", model, kind, language)
        return record, label

    def _check(self, each: Starting, name: str, model: ModelConfig, kind: str, language: Any) -> None:
        spec = each.spec
        fault = misfit(spec.model, self._languages.get(spec.language), model, language)
        if fault is not None:
            raise ConfigError(f"{name} has another architecture: {fault}")
        if each.init.optimizer == "keep" and kind != spec.algorithm.kind:
            raise ConfigError(
                f"optimizer: keep needs one kind of algorithm, but {name} was trained by '{kind}' and this "
                f"run is by '{spec.algorithm.kind}'; use fresh"
            )

    def _of_folder(self, each: Starting) -> Source:
        text = each.init.run
        folder = Path(os.path.abspath(each.folder / os.path.expanduser(text)))
        if not folder.is_dir():
            raise ConfigError(
                f"'{text}' is neither RUN@STEP, SWEEP/RUN@STEP nor a folder ({folder} does not exist); RUN "
                "is the id of a run, which `raysweep status NAME` lists, or a pattern such as 64-1-2-*-s0-*"
            )
        keep, label = each.init.optimizer == "keep", ""
        if (folder / STATE).is_file():
            run, step = RunLedger.of_checkpoint(folder)
            if not run.visible:
                raise ConfigError(
                    f"{folder}: the folder above it is no run's (there is no {run.identity_path}); leave the "
                    "checkpoint in its run's folder, or write it with `raysweep export-model`"
                )
            _, label = self._check_recorded(each, run, step, run.sweep_directory.name)
        elif keep:
            raise ConfigError(
                f"optimizer: keep needs a checkpoint, and {folder} holds a model without an optimizer; "
                "use fresh"
            )
        else:
            fault = folder_misfit(each.spec.model, self._languages.get(each.spec.language), folder)
            if fault is not None:
                raise ConfigError(f"{folder}: {fault}")
        content = state_content(folder, keep=keep)
        return Source(
            folder=str(folder),
            label=label or self._labels.of_folder(folder.name, content),
            optimizer=each.init.optimizer,
            content=content,
        )


def _reference(text: str) -> re.Match[str] | None:
    """Return the parts of RUN@STEP or SWEEP/RUN@STEP; None for a folder."""
    return None if text.startswith(("/", "./", "../", "~")) else _REFERENCE.match(text)


def _step(named: re.Match[str]) -> int:
    text = named["step"]
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"'{named[0]}': '{text}' is not a step; write RUN@STEP, e.g. {named['run']}@1000")
    return int(text)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _ambiguous(pattern: str, names: Sequence[str]) -> str:
    return f"'{pattern}' matches {len(names)} runs ({_some(names)}); name one of them"
