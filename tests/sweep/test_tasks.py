"""Tasks of a sweep: bad ones are refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import local_glue, local_models, local_texts
from raysweep.errors import ConfigError
from raysweep.languages.labelled.rows import Table
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.language_file import load_language

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
        assert "2 combinations of values are the same run" in found.notes[0]

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


class TestTables:
    """Local tables are checked when the file is read, and each mistake is at its own line and column."""

    def test_all_mistakes_are_named_at_once(self, tmp_path: Path, load) -> None:
        _write(tmp_path / "good", GOOD, [("a name", 0), ("a value", 1)])
        _write(tmp_path / "empty", [*GOOD, (" ", 0)], GOOD)
        _write(tmp_path / "class", GOOD, [("a name", 0), ("other", 2)])
        (tmp_path / "sweep.yaml").write_text(
            "name: tasks\n"
            "language:\n"
            "  kind: corpus\n"
            "  source: texts/*.txt\n"
            "  length: 16\n"
            "  held_out: 0.2\n"
            "  tokenizer: {train: wordpiece, vocabulary: 300}\n"
            "  tasks:\n"
            "    - {name: good, source: good, text: text}\n"
            "    - {name: empty, source: empty, text: text}\n"
            "    - {name: class, source: class, text: text}\n"
            "    - {name: absent, text: text, source: ./absent}\n"
            "    - {name: column, source: good, text: text,\n"
            "       label: kind}\n"
            "model: {kind: encoder, shape: 64/1/1/64}\n"
            "algorithm: {kind: adamw}\n"
            "pretrain: {steps: 2, batch_size: 4, mask: 1.5}\n"
            "evaluate:\n"
            "  probe: {train: 7, test: 2}\n"
            "  finetune: {tasks: [good, best], train: 6, test: 3}\n"
        )
        with pytest.raises(ConfigError) as error:
            load()
        lines = str(error.value).replace(f"{tmp_path}/", "").splitlines()
        expected = [
            ("10:42", "language.tasks[1].text: task 'empty': line 7 of empty/train.jsonl has an empty text"),
            ("11:7", "language.tasks[2].label: task 'class': line 2 of class/validation.jsonl holds '2'"),
            ("12:42", "language.tasks[3].source: task 'absent': there is no file, folder or pattern"),
            ("14:15", "language.tasks[4].label: task 'column': good/train.jsonl has no column 'kind'"),
            ("17:43", "pretrain.mask: 1.5 is neither"),
            ("19:18", "evaluate.probe.train: 7 examples are asked for, and task 'good' has no more than 6"),
            ("20:28", "evaluate.finetune.tasks[1]: unknown task 'best'"),
        ]
        for line, (place, words) in zip(lines, expected, strict=True):
            assert line.startswith(f"sweep.yaml:{place}: {words}"), lines

    def test_more_examples_than_rows_are_refused(self, tmp_path: Path, load) -> None:
        _write(tmp_path / "mine", [*GOOD, ("a name", 1)], [("a name", 0), ("other", 1)])
        task = "language.tasks=[{name: mine, source: mine, text: text}]"
        for kind in ("probe", "finetune"):
            # The row that is in the test too does not count.
            for field, n, most, asked in (
                ("train", 7, 6, "{train: 7, test: 2}"),
                ("test", 3, 2, "{train: 6, test: 3}"),
            ):
                message = (
                    f"evaluate.{kind}.{field}: {n} examples .* no more than {most} of '{field}'; ask for"
                )
                with pytest.raises(ConfigError, match=message):
                    load(task, f"evaluate={{{kind}: {asked}}}")
            assert len(load(task, f"evaluate={{{kind}: {{train: 6, test: 2}}}}").runs) == 1

    def test_a_variant_is_checked_too(self, tmp_path: Path, load) -> None:
        _write(tmp_path / "mine", [(text, 1) for text, _ in GOOD], [("a name", 1)])
        sweep = load("language.tasks=[{glue: rte, source: rte}]")
        with pytest.raises(
            ConfigError, match=r"setting language.tasks: .*\[0\].label: task 'mine': all 6 rows of"
        ):
            sweep.variant({"language.tasks": [{"name": "mine", "source": "mine", "text": "text"}]})

    def test_nothing_is_tokenised_and_tables_are_read_once(
        self, tmp_path: Path, load, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lengths = "axes={language.length: [12, 16, 20], seed: [0, 1]}"
        read: list[str] = []
        original = Table.rows

        def counted(table: Table, split: str):
            read.append(split)
            return original(table, split)

        monkeypatch.setattr(Table, "rows", counted)
        assert len(load(lengths).runs) == 6
        assert read == ["train", "validation"]
        load(lengths)
        assert len(read) == 2
        assert not (tmp_path / "cache" / "corpus").exists()
        assert not list((tmp_path / "cache" / "tasks").glob("*.npz"))

    def test_a_language_alone_is_checked_as_well(self, tmp_path: Path, load) -> None:
        load()
        _write(tmp_path / "mine", [("a", 0), ("", 1)], [("b", 1)])
        settings = ["language.tasks=[{name: mine, source: mine, text: text}]"]
        with pytest.raises(ConfigError, match=r"--set .*: language.tasks\[0\].text: task 'mine': line 2 of"):
            load_language(tmp_path / "sweep.yaml", settings)
        assert load_language(tmp_path / "sweep.yaml").data_tasks["rte"].most("train") == 40
