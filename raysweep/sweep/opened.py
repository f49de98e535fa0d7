"""Opens a model for `raysweep evaluate`: its configuration, language and weights.

.../runs/<run id>/checkpoints/step-00000500    a checkpoint; the folders above hold its configuration
.../runs/<run id>                              the run's last checkpoint
RUN@STEP, SWEEP/RUN@STEP                       a checkpoint of the storage (raysweep.sweep.checkpoints)
a folder with config.json                      a Hugging Face model; its language must be given
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysweep import registry
from raysweep.errors import ConfigError, DataError
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language, LanguageConfig
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import MaskedLM, ModelConfig
from raysweep.models.folder import Folder
from raysweep.models.pretrained import HuggingFaceConfig
from raysweep.remote import path_of
from raysweep.sweep.check import Checker
from raysweep.sweep.checkpoints import check_trains, find_checkpoint
from raysweep.sweep.config import LanguageCache
from raysweep.sweep.document import Mark, Problems, node_of, put
from raysweep.sweep.format import check_format
from raysweep.sweep.language_file import load_evaluations, load_language
from raysweep.sweep.ledger import RunLedger
from raysweep.sweep.names import UnknownRunError
from raysweep.sweep.reading import parse
from raysweep.sweep.run import RunSpec
from raysweep.sweep.sentences import training_of
from raysweep.sweep.stored import load_stored
from raysweep.training.checkpoint import STATE, load_model


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that can be loaded, with its language.

    `evaluations`, by kind, are those of its run, or of the sweep file that names the language of a model from
    elsewhere.  `training` is the sentences that its run was trained on; None where they are not known or of
    another language.
    """

    name: str
    language: Language
    model: ModelConfig
    load: Callable[[], MaskedLM] = field(repr=False)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    training: TrainingSet | None = None


def open_model(
    place: str,
    *,
    storage: Path,
    language: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
) -> Opened:
    """Find a model and its language; its weights are read by `load`.

    `place` is one of the places above.  `language` is a sweep file or the file of a language, with
    `overrides` a.b=c; a checkpoint of a run is then measured on that language instead of its own.  Raises
    `ConfigError` or `DataError` naming what is missing, and for a model that cannot read the language.
    """
    path = path_of(place)
    _check_overrides(overrides, language)
    if not path.is_dir():
        if path.exists():
            raise ConfigError(f"{place}: is not a folder; name the folder of a checkpoint, or RUN@STEP")
        try:
            path = find_checkpoint(storage, place).directory
        except UnknownRunError as error:
            # The name of a run may hold slashes, too.
            folder = "; nor is there a folder of that name" if os.sep in place else ""
            raise ConfigError(f"{error}{folder}") from None
    if (path / STATE).is_file():
        return _checkpoint(path, language, overrides)
    run = RunLedger(path)
    if run.visible:
        steps = [record.step for record in run.checkpoints()]
        if not steps:
            spec = _spec(run)
            if spec is not None:
                check_trains(spec)
            raise ConfigError(f"{place}: this run has no checkpoint; launch its sweep")
        return _checkpoint(run.checkpoint_directory(max(steps)), language, overrides)
    if (path / "config.json").is_file():
        return _from_elsewhere(path, language, overrides)
    raise ConfigError(
        f"{place}: holds no model; name a checkpoint (.../runs/<run>/checkpoints/step-00000500), the folder "
        "of a run, or one that transformers' save_pretrained has written"
    )


def _check_overrides(overrides: Sequence[str], language: str | os.PathLike[str] | None) -> None:
    """Raise `ConfigError` for overrides of evaluations, and for any where there is no file to change."""
    for text in overrides:
        setting = text.strip().removeprefix("evaluate.")
        kind = setting.partition("=")[0].partition(".")[0]
        if setting != text.strip() or kind in registry.evaluations.kinds():
            raise ConfigError(
                f"--set {text}: changes the language, not what is measured; write -e {shlex.quote(setting)}"
            )
    if overrides and language is None:
        raise ConfigError("--set: changes the file of --language, which is missing; add --language FILE")


def _checkpoint(directory: Path, language: str | os.PathLike[str] | None, overrides: Sequence[str]) -> Opened:
    run, step = RunLedger.of_checkpoint(directory)
    spec = _spec(run)
    model, config = _recorded(run, directory) if spec is None else (spec.model, spec.language)
    # The tensors have the shapes of its own language, even if another is measured.
    own = config.build()
    built = own if language is None else load_language(language, overrides)
    training = None
    if spec is not None and language is None:
        training = training_of(spec, own, run.storage)
    return Opened(
        name=f"{run.run_id}@{step}",
        language=built,
        model=model,
        load=partial(load_model, directory, model, own),
        evaluations={} if spec is None else spec.evaluations,
        training=training,
    )


def _spec(run: RunLedger) -> RunSpec | None:
    """Return the run's configuration as its sweep was last launched; None if the sweep has no such run."""
    check_format(run.sweep_directory)
    try:
        sweep = load_stored(run.sweep_directory)
    except DataError:
        return None
    return next((spec for spec in sweep.runs if spec.run_id == run.run_id), None)


def _recorded(run: RunLedger, directory: Path) -> tuple[ModelConfig, LanguageConfig]:
    """Return model and language as the run itself recorded them."""
    record = run.identity()
    if record is None:
        raise ConfigError(
            f"{directory}: the folder above it is no run's (there is no {run.identity_path}); "
            "leave the checkpoint in its run's folder, or write it with `raysweep export-model`"
        )
    try:
        model: ModelConfig = registry.models.decode(record.content["model"])
        config: LanguageConfig = registry.languages.decode(record.language)
        return model, config
    except (ValidationError, KeyError) as error:
        raise DataError(
            f"{run.identity_path}: does not say which model it is; launch the sweep of {run.sweep_directory} "
            "again to renew its configuration"
        ) from error


def _from_elsewhere(path: Path, language: str | os.PathLike[str] | None, overrides: Sequence[str]) -> Opened:
    if language is None:
        raise ConfigError(
            f"{path}: a Hugging Face model does not say its language; add --language FILE "
            "(a sweep file, or one with `kind: ...`)"
        )
    built = load_language(language, overrides)
    try:
        # Fine-tuning drops out as much as the folder says; that is the run's own share after an export.
        given = {"path": str(path.resolve()), "dropout": Folder.read(path).dropout}
        model = HuggingFaceConfig.decode({"kind": "huggingface", **given})
    except ValidationError as error:
        raise ConfigError(f"{path}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    for _, message in model.problems(built):
        raise ConfigError(f"{path}: {message}")
    return Opened(
        name=path.resolve().name,
        language=built,
        model=model,
        load=partial(model.build, built, seed=0),
        evaluations=load_evaluations(language),
    )


def choose_evaluations(texts: Sequence[str], opened: Opened) -> tuple[dict[str, Evaluation], list[str]]:
    """Return the evaluations that `texts` ask for, by kind, and notes on the choice.

    A text is KIND or KIND.FIELD=VALUE.  A field that no text sets comes from `opened`'s own evaluation of
    that kind, or else from the defaults.  Without texts, the evaluations are its own, or else excess loss (or
    held-out loss), trace and probe as far as they fit.  Raises `ConfigError` with all errors, and
    `DataError` where the rows of a task make none.
    """
    for data in opened.language.data_tasks.values():
        data.prepare()
    if not texts:
        return _fitting(opened, opened.evaluations or _usual(opened.language))
    problems = Problems()
    root = node_of({}, Mark("--evaluate"))
    for text in texts:
        mark = Mark(f"--evaluate {text}", folder=Path.cwd())
        left, equals, right = text.partition("=")
        path = left.strip().split(".")
        if not all(path) or bool(equals) != (len(path) > 1) or (equals and not right.strip()):
            problems.add(mark, "", "not of the form KIND or KIND.FIELD=VALUE, e.g. trace.inputs=4096")
            continue
        kind = path[0]
        if root.get(kind) is None:
            own = opened.evaluations.get(kind)
            settings = {} if own is None else own.encode()
            # The key says the name, and where there is none, the kind.
            settings.pop("name" if "name" in settings else "kind", None)
            root = put(root, [kind], node_of(settings, mark), mark)
        if equals:
            try:
                root = put(root, path, parse(right, mark, problems), mark)
            except ConfigError as error:
                problems.add(mark, left, str(error).removeprefix(f"{mark}: "))
    decoded = Checker(problems, LanguageCache()).evaluations(root, root.mark)
    for kind, (evaluation, node, at) in decoded.items():
        for name, message in _misfits(evaluation, opened):
            holder = node.find(name.split(".")[:1]) if name else None
            where = ".".join(part for part in ("evaluate", kind, name) if part)
            problems.add(holder.mark if holder else at, where, message)
    problems.raise_any()
    return {kind: found[0] for kind, found in decoded.items()}, []


def _misfits(evaluation: Evaluation, opened: Opened) -> list[tuple[str, str]]:
    return [
        *evaluation.problems(opened.language),
        *evaluation.model_problems(opened.model, opened.language),
        *evaluation.training_problems(opened.training),
    ]


def _usual(language: Language) -> dict[str, Evaluation]:
    """Return the default evaluations: loss, trace and probe."""
    # Exact conditionals that are worth storing cost too much to compute by default.
    exact = language.exact and not language.stores_conditionals
    settings: dict[str, dict[str, Any]] = {"excess_loss" if exact else "held_out_loss": {}, "trace": {}}
    classified = [name for name, data in language.data_tasks.items() if not data.regression]
    if language.tasks:
        settings["probe"] = {}
    elif classified:
        # All rows: data sets differ too much in size for one number.
        settings["probe"] = {"tasks": classified, "train": None, "test": None}
    return {kind: registry.evaluations.decode({"kind": kind, **own}) for kind, own in settings.items()}


def _fitting(
    opened: Opened, evaluations: Mapping[str, Evaluation]
) -> tuple[dict[str, Evaluation], list[str]]:
    """Return the evaluations that can measure the model, and a note for each other one."""
    found, notes = {}, []
    for kind, evaluation in evaluations.items():
        misfits = _misfits(evaluation, opened)
        if misfits:
            notes.append(f"{kind} is left out: {misfits[0][1]}")
        else:
            found[kind] = evaluation
    return found, notes
