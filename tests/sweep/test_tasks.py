"""Tasks of a sweep: bad ones are refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import local_glue, local_models, local_texts
from raysweep.errors import ConfigError, DataError
from raysweep.sweep import Sweep, load_sweep

FILE = """\
name: tasks
language: {kind: corpus, source: texts/*.txt, length: 16, held_out: 0.2,
  tokenizer: {train: wordpiece, vocabulary: 300}, tasks: [{glue: rte, source: rte}]}
model: {kind: encoder, shape: 64/1/1/64}
algorithm: {kind: adamw}
pretrain: {steps: 2, batch_size: 4, mask: 0.15}
evaluate: {probe: {train: 30, test: 16}}
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that loads the file above with settings laid on it, beside two tasks of GLUE."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    local_texts.write(tmp_path / "texts", local_texts.documents())
    for task in ("rte", "sst2", "qqp"):
        local_glue.write(tmp_path / task, task)
    path = tmp_path / "sweep.yaml"
    path.write_text(FILE)
    monkeypatch.chdir(tmp_path)

    def loaded(*settings: str) -> Sweep:
        return load_sweep(path, settings, storage=tmp_path / "results")

    return loaded


class TestUntrained:
    """The look-up table has no conditionals for texts that are no sentences of the language."""

    causal = (
        f"language={{kind: causal_lm, model: {local_models.trained_opt()}, keep: 60, length: 12, "
        "tasks: [{glue: rte, source: rte}]}"
    )

    def test_it_is_refused_on_labelled_texts(self, load) -> None:
        message = (
            r"evaluate.probe.tasks: 'lookup_table' answers with exact conditionals, and the texts of task "
            r"'rte' are no sentences of the language.*; name other tasks, or leave that algorithm out"
        )
        for settings in (["algorithm={kind: lookup_table}"], ["include=[{algorithm: {kind: lookup_table}}]"]):
            with pytest.raises(ConfigError, match=message):
                load(self.causal, *settings)

    def test_other_evaluations_and_models_are_not_concerned(self, load) -> None:
        trained, table = load(
            self.causal,
            "include=[{algorithm: {kind: lookup_table}}]",
            "evaluate={excess_loss: {sentences: 64}, finetune: {}, quantize: {sentences: 64}}",
        ).runs
        assert set(trained.evaluations) == {"excess_loss", "finetune", "quantize"}
        assert set(table.evaluations) == {"excess_loss"}
        assert load(self.causal).runs[0].evaluations["probe"].data[0][0] == "rte"


class TestGrid:
    """Tasks do not change a training, so grid points with other tasks would be one run."""

    def test_points_that_differ_in_tasks_alone_are_refused(self, load) -> None:
        with pytest.raises(
            ConfigError, match=r"language.tasks: two points of the grid differ in their tasks alone, and both"
        ):
            load("axes={language.tasks: [[{glue: rte, source: rte}], [{glue: sst2, source: sst2}]]}")
        with pytest.raises(ConfigError, match=r"differ in their tasks alone"):
            load("include=[{language.tasks: [{glue: sst2, source: sst2}]}]", "axes={seed: [0, 1]}")

    def test_one_list_and_names_do_instead(self, load) -> None:
        (run,) = load("language.tasks=[{glue: rte, source: rte}, {glue: sst2, source: sst2}]").runs
        assert [name for name, _ in run.evaluations["probe"].data] == ["rte", "sst2"]

    def test_tasks_that_no_evaluation_asks_for_make_no_difference(self, load) -> None:
        found = load(
            "axes={language.tasks: [[{glue: rte, source: rte}], [{glue: rte, source: rte}, {glue: sst2, "
            "source: sst2}]]}",
            "evaluate.probe.tasks=[rte]",
        )
        assert len(found.runs) == 1
        assert "2 points of the grid are the same run" in found.notes[0]

    def test_other_languages_may_have_other_tasks(self, load) -> None:
        runs = load(
            "zip=[{language.length: [16, 20], language.tasks: [[{glue: rte, source: rte}], "
            "[{glue: sst2, source: sst2}]]}]"
        ).runs
        assert [run.evaluations["probe"].data[0][0] for run in runs] == ["rte", "sst2"]


def _write(folder: Path, train: Sequence[tuple[Any, Any]], test: Sequence[tuple[Any, Any]]) -> None:
    folder.mkdir()
    for name, rows in (("train", train), ("validation", test)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


GOOD = [(f"the value of {word}", k % 2) for k, word in enumerate(["a", "an", "one", "to", "from", "by"])]


@pytest.mark.parametrize(
    ("train", "test", "settings", "message"),
    [
        (GOOD, [("a name", 1)], "label: kind", r"label: 'train' of .* has no column 'kind', but text, label"),
        (
            [(text, 1) for text, _ in GOOD],
            [("a name", 1)],
            "",
            r"'mine': all 6 training rows have the label '1'",
        ),
        (
            [*GOOD, (" ", 0)],
            GOOD,
            "",
            r"row 6 of 'train' of .* an empty text or no label; remove it",
        ),
        (GOOD, [("other", 2)], "", r"label: row 0 of 'validation' of .* holds '2', and the classes are 0, 1"),
        (
            [*GOOD, ("rare", 2)],
            [("rare", 2), ("a name", 0)],
            "",
            r"task 'mine': the class '2' occurs in the test rows and in no training row",
        ),
        (
            GOOD,
            [("a name", 0), ("a value", 1)],
            "",
            r"evaluate.probe.test: 8 examples .* task 'mine' has 2 of 'test'",
        ),
    ],
)
def test_bad_rows_are_refused_before_anything_starts(
    train: Any, test: Any, settings: str, message: str, load, tmp_path: Path
) -> None:
    _write(tmp_path / "mine", train, test)
    task = f"{{name: mine, source: mine, text: text{', ' + settings if settings else ''}}}"
    sweep = load(f"language.tasks=[{task}]", "evaluate.probe={train: 4, test: 8}")
    with pytest.raises((ConfigError, DataError), match=message):
        sweep.prepare()
