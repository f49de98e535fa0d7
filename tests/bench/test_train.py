"""`raysweep bench train`: equal losses, the same sentences, counted operations, and no import of ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raysweep.bench import suites
from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers.bert import IGNORED, Bert, Inputs, Recipe
from raysweep.bench.record import Record, load
from raysweep.bench.train import ENTRIES, cases, work
from raysweep.bench.train.work import Work, by_length
from raysweep.cli.app import run
from raysweep.errors import ConfigError
from raysweep.models.precision import multiplies_bfloat16

#: Packages that a machine with a GPU need not have.
ABSENT = ("ray", "mlflow", "datasets", "pandas", "pyarrow", "matplotlib", "typer", "rich")


@pytest.fixture(scope="module")
def small() -> Work:
    return Work(shape="32/2/2/64", batch_size=32, steps=3, device="cpu")


def test_batches_by_length_hold_the_same_sentences(small: Work) -> None:
    given = list(small.batches())
    grouped = by_length(given)
    assert [len(batch.ids) for batch in grouped] == [32, 32, 32]
    pad = small.language.pad_id

    def sentences(batches: list[work.Batch]) -> list[tuple[list[int], int, int]]:
        return sorted(
            ([w for w in ids.tolist() if w != pad], int(position), int(target))
            for batch in batches
            for ids, position, target in zip(batch.ids, batch.index, batch.targets, strict=True)
        )

    assert sentences(grouped) == sentences(given)
    lengths = [small.language.lengths(batch.ids) for batch in grouped]
    assert bool((torch.cat(lengths).diff() >= 0).all())
    assert [batch.ids.shape[1] for batch in grouped] == [int(found.max()) for found in lengths]
    assert small.tokens == sum(int(found.sum()) for found in lengths)


def test_inputs(small: Work) -> None:
    batch = by_length(list(small.batches()))[0]
    inputs = Inputs.of(batch, small.language.pad_id)
    for row in range(len(batch.ids)):
        n, at = int(small.language.lengths(batch.ids[row : row + 1])), int(batch.index[row])
        assert inputs.attention_mask[row].tolist() == [1] * n + [0] * (batch.ids.shape[1] - n)
        labels = [IGNORED] * batch.ids.shape[1]
        labels[at] = int(batch.targets[row])
        assert inputs.labels[row].tolist() == labels
        assert int(inputs.input_ids[row, at]) == small.language.mask_id


@pytest.mark.parametrize("has_them", [False, True])
def test_peers_in_bfloat16_take_part_where_the_processor_has_instructions_for_it(
    has_them: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "multiplies_bfloat16", lambda device: has_them)
    names = [peer.name for peer in cases.encoder("32/2/2/64", "cpu", quick=True, rounds=1, steps=3).peers]
    assert names == [
        "BertForMaskedLM, float32",
        *(["BertForMaskedLM, bfloat16"] if has_them else []),
        "the same, sorted by length, fused AdamW",
    ]
    tried = [torch.float32, torch.bfloat16] if has_them else [torch.float32]
    assert {recipe.precision for recipe in cases.ways("cpu")} == set(tried)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("way", [{}, {"fused": True}, {"fused": True, "attention": "sdpa"}], ids=str)
def test_losses_are_equal(small: Work, way: dict[str, Any], precision: torch.dtype) -> None:
    recipe = Recipe(precision=precision, **way)
    given = list(small.batches())
    if recipe.fused:
        given = by_length(given)
    assert cases.loss_difference(small, given, recipe).passed


@pytest.mark.parametrize(
    ("changed", "dropout"), [({"lr": 1.1e-3}, 0.0), ({"betas": (0.9, 0.999)}, 0.0), ({}, 0.01)]
)
def test_another_training_is_not_equal(small: Work, changed: dict[str, object], dropout: float) -> None:
    longer = replace(small, batch_size=64, steps=cases.CHECKED_STEPS, algorithm=cases.CHECKED)
    given = list(longer.batches())
    bert = Bert(
        longer.model(dropout),
        cases.CHECKED.model_copy(update=changed),
        Recipe(),
        steps=longer.steps,
        device="cpu",
    )
    found = bert.train([Inputs.of(batch, longer.language.pad_id) for batch in given]).double()
    apart = (found - work.losses(longer, given)).abs().max().item()
    assert apart > 2 * cases.TOLERANCE[torch.float32]


def test_a_peer_drops_out_as_we_do(small: Work) -> None:
    bert = Bert(small.model(0.1), small.algorithm, Recipe(), steps=3, device="cpu")
    found = [m.p for m in bert.model.modules() if isinstance(m, torch.nn.Dropout)]
    assert bert.model.training
    # After the embedding, and in each layer on the attention's weights and after both sublayers.
    assert found == [0.1] * (1 + 3 * 2)
    groups = [(g["weight_decay"], sum(p.numel() for p in g["params"])) for g in bert.optimizer.param_groups]
    ours = small.stepper(0.1).optimizer
    assert groups == [(g["weight_decay"], sum(p.numel() for p in g["params"])) for g in ours.param_groups]


def test_the_split_is_the_whole_step(small: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def process_time() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(work, "time", type("Clock", (), {"process_time": staticmethod(process_time)}))
    # Each part lies between two readings of the clock, and no reading serves twice.
    stepper = small.stepper(0.1)
    assert stepper.model.fused
    assert work.split(small, stepper) == {"data": 1.0, "forward+backward": 1.0, "optimizer": 1.0}


def test_sentences_are_drawn_as_in_the_loop(small: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    given = list(small.batches())
    again = list(small.drawn())
    assert [batch.ids.tolist() for batch in again] == [batch.ids.tolist() for batch in given]
    asked: list[torch.device] = []

    def drawn(chunks: Iterable[list[work.Batch]], device: torch.device) -> Generator[work.Batch]:
        asked.append(device)
        for chunk in chunks:
            yield from chunk

    monkeypatch.setattr(work, "drawn", drawn)
    stepper = small.stepper(0.1)
    work.train(small, stepper)
    work.split(small, stepper)
    assert asked == [torch.device("cpu")] * 2


def test_a_compiler_that_fails_makes_a_peer_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(call: object) -> object:
        def fail(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("Failed to find C compiler.\nSet CC.")

        return fail

    monkeypatch.setattr(torch, "compile", compile_nothing)
    work_here = Work(shape="32/2/2/64", batch_size=8, steps=1, device="cpu")
    peer = cases._peer(work_here, "compiled", Recipe(compiled=True), note="")
    with pytest.raises(
        UnavailableError, match=r"^torch\.compile does not work here: Failed to find C compiler\.$"
    ):
        peer.prepare()
    cases._peer(work_here, "not compiled", Recipe(), note="").prepare()


@pytest.mark.parametrize(
    ("layers", "compiled"),
    [(2, ["BertForMaskedLM"]), (5, ["BertEmbeddings", *["BertLayer"] * 5, "BertOnlyMLMHead"])],
)
def test_deep_peers_are_compiled_by_layers(
    layers: int, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: found.append(type(part).__name__))
    work_here = Work(shape=f"32/2/{layers}/64", batch_size=8, steps=1, device="cpu")
    for recipe in (Recipe(), Recipe(compiled=True)):
        Bert(work_here.model(0.1), work_here.algorithm, recipe, steps=1, device="cpu")
    assert found == compiled


def test_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "multiplies_bfloat16", lambda device: True)
    by_key = {(entry.key, entry.device): entry.build for entry in ENTRIES}
    goals = [peer.goal for peer in by_key["encoder-128", "cpu"](True).peers]
    assert goals == [5.0, 2.5, 2.0]
    assert [key for key, device in by_key if device == "cuda"] == [
        "encoder-128", "encoder-512", "encoder-1024",
    ]  # fmt: skip


def test_a_quick_run_needs_neither_ray_nor_mlflow(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    request = {"suite": "train", "only": ["encoder-64"], "quick": True, "threads": 1, "device": "cpu"}
    arguments = ["raysweep.bench", json.dumps(request), str(file)]
    code = (
        "import runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        f"sys.argv = {arguments!r}\n"
        "runpy.run_module('raysweep.bench', run_name='__main__')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    record = load(file)
    [case] = record.cases
    assert (record.suite, record.environment.gpu) == ("train", None)
    assert [row.status for row in case.comparisons] == ["equal"] * (
        3 if multiplies_bfloat16(torch.device("cpu")) else 2
    )
    assert all(row.cpu_ratio is not None for row in case.comparisons)
    figures = {figure.name: figure.value for figure in case.figures}
    assert 0 < figures["share of the peak in float32"] < 1
    assert all(figures[f"{part}, a step"] > 0 for part in ("data", "forward+backward", "optimizer"))


def test_the_command(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def measure(suite: str, only: list[str], **more: object) -> Record:
        asked.append((suite, only, more))
        return record.model_copy(update={"cases": record.cases[1:]})

    monkeypatch.setattr(suites, "measure", measure)
    assert run(["bench", "train", "--device", "cuda", "--only", "encoder-512", "--json"]) == 0
    assert asked == [("train", ["encoder-512"], {"quick": False, "threads": 1, "device": "cuda"})]
    assert run(["bench", "train", "--device", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--device cuda: torch finds no GPU here"):
        suites.measure("train", quick=True, threads=1, device="cuda")
    with pytest.raises(ConfigError, match=r"bench train has no case 'encoder-512'"):
        suites.measure("train", ["encoder-512"], quick=True, threads=1)


def test_bytes_beside_products_are_those_of_each_array(small: Work) -> None:
    """For each kernel of `raysweep.models.gpu`, what it reads and what it writes."""
    model = small.model(0.0)
    D, F, half, full = 32, 64, 2, 4
    attention = half * (3 * D + D) + half * (3 * D + D + 3 * D)
    summed = (full + half) * D + (full + half) * D
    summed_back = (full + half + full) * D + (full + half) * D
    activation = half * (F + F) + half * (2 * F + F)
    behind = 2 * (summed + summed_back) + activation
    weights = sum(p.numel() for p in model.parameters())
    optimizer = (4 + 3) * full + full + half
    wanted = 1000 * (2 * attention + behind) + 96 * behind + 3 * optimizer * weights
    assert cases.other_bytes(model, 1000, 96, 3) == wanted  # type: ignore[arg-type]
