"""Stored training sentences: the same as without a store, for any order of asking, ranks and runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import local_models
from raysweep import seeding
from raysweep.errors import IdentityError
from raysweep.languages import CausalLM
from raysweep.languages.training_set import TrainingSet
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep import sentences as module
from raysweep.sweep.sentences import StoredSentences, described, draw_shard, training_of, wanted
from raysweep.sweep.shards import ShardStore
from raysweep.training import World
from raysweep.training.data import batches

SHARD = 32

SWEEP = """\
name: tiny
language: {{kind: causal_lm, model: {model}, keep: 4, length: 3}}
model: {{kind: encoder, shape: 8/1/2/16, dropout: 0.0}}
algorithm: {{kind: adamw, lr: 1e-2}}
pretrain: {{steps: 10, batch_size: 8{more}}}
evaluate: {{held_out_loss: {{sentences: 8}}}}
axes: {{seed: [0, 1], algorithm.lr: [1e-2, 2e-2]}}
"""


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARD", SHARD)


def load(tmp_path: Path, more: str = "") -> Sweep:
    file = tmp_path / "tiny.yaml"
    file.write_text(SWEEP.format(model=local_models.random_opt(), more=more))
    return load_sweep(file, storage=tmp_path / "results")


def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that all numbers of sentences that are drawn from now on go into."""
    drawn: list[int] = []
    draw = CausalLM.sample_at

    def spy(self: CausalLM, numbers: Tensor, *, seed: int) -> Tensor:
        drawn.extend(numbers.tolist())
        return draw(self, numbers, seed=seed)

    monkeypatch.setattr(CausalLM, "sample_at", spy)
    return drawn


def rows(sweep: Sweep, run: int = 0, **options: Any) -> Tensor:
    """Return what the batches of a run hold: words as seen, masked position and hidden word [n, T + 2]."""
    spec, language = sweep.runs[run], sweep.language(sweep.runs[run])
    found = batches(
        language, spec.pretrain, seed=spec.seeds.data, first=options.pop("first", 1), last=10, **options
    )
    return torch.cat([torch.cat([b.ids, b.index[:, None], b.targets[:, None]], dim=1) for b in found])


def of_store(sweep: Sweep, run: int = 0) -> TrainingSet:
    spec = sweep.runs[run]
    return training_of(spec, sweep.language(spec), sweep.storage)


def stored(sweep: Sweep) -> dict[str, int]:
    """Return the number of sentences in each stored shard."""
    folder = sweep.storage / "sentences"
    found = {}
    for path in sorted(folder.glob("*/*.safetensors")):
        shard = ShardStore(path.parent).read(int(path.stem))
        assert shard is not None
        assert shard["ids"].dtype == np.int16
        found[f"{path.parent.name.split('-')[1]}/{path.stem}"] = len(shard["ids"])
    return found


@pytest.mark.parametrize("more", ["", ", sentences: 70", ", sentences: 24"])
def test_a_run_stores_what_it_draws_and_the_next_one_reads_it(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(tmp_path, more)
    expected = rows(sweep)
    total = {"": 80, ", sentences: 70": 70, ", sentences: 24": 24}[more]
    drawn = count(monkeypatch)
    assert torch.equal(rows(sweep, training=of_store(sweep)), expected)
    assert sorted(set(drawn)) == list(range(total))
    assert len(drawn) == total
    sizes = [min(SHARD, total - start) for start in range(0, total, SHARD)]
    assert stored(sweep) == {f"s0/{k:06d}": size for k, size in enumerate(sizes)}
    drawn.clear()
    # The second run of the seed, in parts, from another step on, by ranks.
    assert torch.equal(rows(sweep, 1, training=of_store(sweep, 1)), expected)
    assert torch.equal(rows(sweep, training=of_store(sweep), first=4), expected[24:])
    shares = [rows(sweep, training=of_store(sweep), world=World(rank, 2)).view(10, 4, -1) for rank in (0, 1)]
    assert torch.equal(torch.cat(shares, dim=1).flatten(0, 1), expected)
    assert drawn == []


def test_a_rank_draws_its_own_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = load(tmp_path)
    expected = rows(sweep)
    drawn = count(monkeypatch)
    for by_store in (False, True):
        for rank in range(3):
            drawn.clear()
            training = of_store(sweep) if by_store else None
            mine = rows(sweep, world=World(rank, 3), training=training)
            share = range(8)[World(rank, 3).rows(8)]
            assert drawn == [8 * step + row for step in range(10) for row in share]
            assert torch.equal(mine, expected[torch.tensor(drawn)])
    assert stored(sweep) == {}


@pytest.mark.parametrize("kept", [[0], [2], [0, 1], [1, 2], [0, 1, 2]])
def test_part_of_a_store_changes_nothing(
    kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(tmp_path)
    [one, other] = wanted(sweep)
    assert (one.total, one.seed, other.seed, one.shards) == (80, 0, 1, range(3))
    language = sweep.language(sweep.runs[0])
    store = one.make()
    for shard in kept:
        store.write(shard, draw_shard(language, one, shard))
    expected = language.sample(80, seed=seeding.derive(0, "train"))
    drawn = count(monkeypatch)
    assert torch.equal(of_store(sweep).drawn(0, 80), expected)
    assert drawn == [number for number in range(80) if number // SHARD not in kept]
    assert stored(sweep) == {"s0/000000": 32, "s0/000001": 32, "s0/000002": 16}


def test_the_store_is_the_truth(tmp_path: Path) -> None:
    """Stored sentences are read, whatever would have been drawn."""
    sweep = load(tmp_path)
    [one, _] = wanted(sweep)
    other = np.zeros((SHARD, 3), dtype=np.int16)
    one.make().write(1, {"ids": other})
    found = of_store(sweep).drawn(0, 80)
    assert not found[SHARD : 2 * SHARD].any()
    assert found[:SHARD].any()


def test_a_longer_run_completes_the_last_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = load(tmp_path)
    of_store(short).drawn(0, 80)
    assert stored(short)["s0/000002"] == 16
    spec = short.runs[0]
    long = replace(spec, pretrain=spec.pretrain.model_copy(update={"steps": 12, "milestones": (12,)}))
    drawn = count(monkeypatch)
    found = training_of(long, short.language(spec), short.storage).drawn(0, 96)
    assert drawn == list(range(80, 96))
    assert stored(short)["s0/000002"] == 32
    assert torch.equal(found, short.language(spec).sample(96, seed=seeding.derive(0, "train")))
    # The short run sees the same as before, and does not cut it again.
    assert torch.equal(of_store(short).drawn(0, 80), found[:80])
    assert stored(short)["s0/000002"] == 32


def test_a_resumed_run_stores_the_shards_that_it_draws_whole(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    of_store(sweep).drawn(40, 40)
    assert stored(sweep) == {"s0/000002": 16}
    of_store(sweep).drawn(0, 80)
    assert stored(sweep) == {"s0/000000": 32, "s0/000001": 32, "s0/000002": 16}


def test_damage_is_drawn_again(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    expected = of_store(sweep).drawn(0, 80)
    [one, _] = wanted(sweep)
    torn = ShardStore(one.folder).path(1)
    torn.write_bytes(torn.read_bytes()[:-1])
    assert torch.equal(of_store(sweep).drawn(0, 80), expected)
    assert stored(sweep) == {"s0/000000": 32, "s0/000001": 32, "s0/000002": 16}
    assert len(list(one.folder.glob("quarantine/*"))) == 1


def test_many_shards_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two mapped and one unfinished shard."""
    monkeypatch.setattr(module, "_MAPPED", 2)
    monkeypatch.setattr(module, "_UNFINISHED", 1)
    sweep = load(tmp_path)
    spec, language = sweep.runs[0], sweep.language(sweep.runs[0])
    [one, _] = wanted(sweep)
    one = replace(one, total=500)
    expected = language.sample(500, seed=one.drawn_by)
    store = StoredSentences(language, one)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    for part in (order[:100], order[100:], torch.arange(500), torch.tensor([499, 0, 499])):
        assert torch.equal(store.take(part), expected[part])
    assert sum(stored(sweep).values()) == 500
    assert store.take(order[:0]).shape == (0, 3)
    assert spec.language_fingerprint == one.fingerprint


def test_the_sets_of_a_sweep_and_what_provenance_says_of_them(tmp_path: Path) -> None:
    sweep = load(tmp_path)
    sets = wanted(sweep)
    fingerprint = sweep.runs[0].language_fingerprint
    assert [one.folder for one in sets] == [
        tmp_path / "results" / "sentences" / f"{fingerprint[:10]}-s{seed}" for seed in (0, 1)
    ]
    of_store(sweep).drawn(0, 40)
    assert described(sets)[0] == {
        "folder": str(sets[0].folder),
        "language": fingerprint,
        "part": "training",
        "seed": 0,
        "shard_size": SHARD,
        "sentences": 80,
        "shards_stored": 1,
    }
    assert described(sets)[1]["shards_stored"] == 0
    shutil.rmtree(sets[1].folder, ignore_errors=True)
    ShardStore.make(sets[1].folder, {**sets[1].identity, "language": "another"})
    with pytest.raises(IdentityError, match="language another"):
        of_store(sweep, 2).drawn(0, 8)


def test_other_languages_are_drawn(tmp_path: Path) -> None:
    file = tmp_path / "dyck.yaml"
    file.write_text(
        SWEEP.format(model="x", more="").replace(
            "{kind: causal_lm, model: x, keep: 4, length: 3}", "{kind: dyck, length: 4}"
        )
    )
    sweep = load_sweep(file, storage=tmp_path / "results")
    assert wanted(sweep) == []
    assert of_store(sweep).store is None
