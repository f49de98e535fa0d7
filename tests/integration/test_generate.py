"""Generating on real Ray: any number of workers, killed workers, killed drivers."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from helpers import local_models
from raysweep.engine import references
from raysweep.engine.cluster import connected
from raysweep.engine.driver import launch
from raysweep.engine.generate import generate
from raysweep.engine.outcome import is_trouble
from raysweep.engine.references import References
from raysweep.engine.sentences import fill
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.generation import Generated
from raysweep.languages import HMMConfig, PCFGConfig
from raysweep.languages.causal_lm import CausalLMConfig
from raysweep.sweep import load_sweep
from raysweep.sweep.sentences import described
from raysweep.sweep.shards import ShardStore
from raysweep.testing.training import FolderJournal
from raysweep.training import load_model, pretrain
from raysweep.training.checkpoint import checkpoint_directory

pytestmark = pytest.mark.ray

#: The language of the scaling sweep.
PCFG = PCFGConfig(roots=2, layers=3, symbols=2, rules=3, stop=0.2, words=8, vocabulary=8)
SIZES: dict[str, Any] = {"sentences": 2000, "train": 300, "test": 300, "shard_size": 256, "seed": 3}
EVERYTHING = ("statistics", "entropy", "conditionals", "tasks")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One Ray for all tests here that need not kill its driver."""
    with connected():
        yield


def facts(found: Generated) -> dict[str, Any]:
    """Return the findings without what differs between two ways to them."""
    return {key: value for key, value in found.to_dict().items() if key not in ("out", "shards", "seconds")}


def files(out: Path) -> dict[str, str]:
    """The sha256 of every shard."""
    shards = sorted(out.glob("*/*.safetensors"))
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in shards}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, str]]:
    """The findings and files of one worker, undisturbed."""
    out = tmp_path_factory.mktemp("one") / "out"
    seen: list[tuple[int, int]] = []
    told: Callable[[int, int], None] = lambda done, total: seen.append((done, total))  # noqa: E731
    found = generate(PCFG, what=EVERYTHING, out=out, workers=1, progress=told, **SIZES)
    assert seen[0] == (0, 2600)
    assert seen[-1] == (2600, 2600)
    assert seen == sorted(seen)
    assert (found.made, found.reused) == (8 + 2 + 2, 0)
    assert json.loads((out / "summary.json").read_text())["entropy"] == found.to_dict()["entropy"]
    return facts(found), files(out)


def test_any_number_of_workers_makes_the_same_bits(expected: Any, tmp_path: Path) -> None:
    found = generate(PCFG, what=EVERYTHING, out=tmp_path / "out", workers=2, **SIZES)
    assert facts(found) == expected[0]
    assert files(tmp_path / "out") == expected[1]
    # Part of it again, in memory alone.
    unstored = generate(PCFG, what=["statistics", "tasks:B"], workers=2, **SIZES)
    assert facts(unstored)["tasks"] == {"B": expected[0]["tasks"]["B"]}
    assert unstored.word_counts == found.word_counts


def test_what_is_there_is_not_made_again(expected: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    generate(PCFG, what=["tasks"], out=out, **SIZES)
    (out / "test" / "000001.safetensors").unlink()
    torn = out / "train" / "000000.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    found = generate(PCFG, what=EVERYTHING, out=out, **SIZES)
    assert (found.made, found.reused) == (8 + 1 + 1, 2)
    assert facts(found) == expected[0]
    assert files(out) == expected[1]


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    """The process that is at work on the first shards dies; Ray runs its task again."""
    language = HMMConfig(states=40, vocabulary=60, length=16, blocks=1, tasks=(4,))
    sizes: dict[str, Any] = {"sentences": 8192, "shard_size": 512, "what": ["entropy"]}
    whole = generate(language, workers=2, **sizes)
    killed: list[int] = []

    def kill(done: int, total: int) -> None:
        # Both may have ended their shards a moment ago and wait for more: then the next time.
        if done and not killed and (pids := [pid for pid in workers() if pid != os.getpid()]):
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    found = generate(language, workers=2, progress=kill, out=tmp_path / "out", **sizes)
    assert killed
    assert facts(found) == facts(whole)
    assert len(files(tmp_path / "out")) == 16


def workers() -> list[int]:
    """Return the pids of the worker processes of this Ray that run a shard now."""
    children = {os.getpid()}
    found, table = [], {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                name = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            table[int(entry.name)] = (parent, name)
    for _ in table:
        grown = children | {pid for pid, (parent, _) in table.items() if parent in children}
        if grown == children:
            break
        children = grown
    found = [pid for pid in children if table.get(pid, (0, ""))[1].startswith("ray::generate")]
    return sorted(found)


def test_references_of_a_costly_language_are_stored_and_found_again(tmp_path: Path) -> None:
    """Shards find them on disk where there is no room to share them."""
    config = CausalLMConfig(model=str(local_models.random_opt()), keep=8, length=5)
    evaluation = ExcessLossConfig(sentences=20, shard_size=8, positions="random")
    expected = [evaluation.reference(config.build(), shard) for shard in range(3)]
    store = References(1 << 20, tmp_path)
    kept = ray.get(store.get(config, evaluation, {"CPU": 1}))
    for one, other in zip(kept, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("conditionals/*/*.safetensors")}
    assert len(written) == 3
    gone = max(written)
    gone.unlink()
    no_room = References(0, tmp_path)
    assert ray.get(no_room.get(config, evaluation, {"CPU": 1})) == [None] * 3
    again = {path: path.stat().st_mtime_ns for path in tmp_path.glob("conditionals/*/*.safetensors")}
    assert again.keys() == written.keys()
    assert {path for path in written if again[path] != written[path]} == {gone}


def test_conditionals_whose_owner_died_are_trouble_and_are_made_again(tmp_path: Path) -> None:
    evaluation = ExcessLossConfig(sentences=3000, shard_size=100)
    store = References(1 << 30, tmp_path)
    language, need = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=(1,)), {"CPU": 2}
    shard = ray.remote(lambda reference: len(reference)).remote(store.get(language, evaluation, need)[-1])
    ray.kill(store._actor, no_restart=False)
    with pytest.raises(ray.exceptions.RayTaskError) as lost:
        ray.get(shard)
    assert is_trouble(lost.value), lost.value
    assert len(ray.get(store.get(language, evaluation, need)[-1])) == 100
    store.close()


def test_conditionals_whose_task_failed_are_made_again_when_they_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room of the set that is dropped is free again; a set that is whole is kept."""

    @ray.remote(max_retries=0)
    def dies(*arguments: Any) -> None:
        os._exit(1)

    language, need = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=(1,)), {"CPU": 1}
    evaluation = ExcessLossConfig(sentences=20, shard_size=8)
    room = evaluation.reference_bytes(language.build())
    store, task = references._References(room, tmp_path), references.exact_conditionals
    monkeypatch.setattr(references, "exact_conditionals", dies)
    broken = store.get(language, evaluation, need)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(broken)
    monkeypatch.setattr(references, "exact_conditionals", task)
    assert store.get(language, evaluation, need) == broken
    made = store.get(language, evaluation, need, lost=True)
    assert [len(one) for one in ray.get(made)] == [8, 8, 4]
    assert store.get(language, evaluation, need, lost=True) == made


OPT = """\
name: opt
language: {{kind: causal_lm, model: {model}, keep: 4, length: 3}}
model: {{kind: encoder, shape: 8/1/2/16, dropout: 0.0}}
algorithm: {{kind: adamw, lr: 1e-2}}
pretrain: {{steps: 30, batch_size: 200, sentences: 5000}}
evaluate: {{held_out_loss: {{sentences: 16, split: both}}}}
axes: {{algorithm.lr: [1e-2, 2e-2]}}
"""


def test_training_reads_what_tasks_have_drawn(tmp_path: Path) -> None:
    """Two runs, on a filled store, end as one that draws for itself."""
    file = tmp_path / "opt.yaml"
    file.write_text(OPT.format(model=local_models.random_opt()))
    sweep = load_sweep(file, storage=tmp_path / "results")
    spec = sweep.runs[0]
    told: list[tuple[int, int]] = []
    found = fill(sweep, workers=2, progress=lambda done, total: told.append((done, total)))
    assert (found.made, found.reused) == (2, 0)
    assert (told[0], told[-1]) == ((0, 5000), (5000, 5000))
    [one] = found.sets
    store = ShardStore.find(one.folder)
    shards = [store.read(k) for k in (0, 1)]
    assert [0 if shard is None else len(shard["ids"]) for shard in shards] == [4096, 904]
    again = fill(sweep)
    assert (again.made, again.reused) == (0, 2)
    before = files(tmp_path / "results" / "sentences")
    assert len(before) == 2

    assert launch(sweep).failures == {}
    assert files(tmp_path / "results" / "sentences") == before
    [facts] = [json.loads(path.read_text()) for path in sweep.directory.glob("launches/*.json")]
    assert facts["sentences"] == described([one])
    assert facts["sentences"][0]["shards_stored"] == 2
    run = sweep.ledger().run(spec)
    assert (
        f"sentences come from {one.folder}, where 2 of 2 shards are stored"
        in (run.logs / "train-0.log").read_text()
    )

    alone = FolderJournal(tmp_path / "alone")
    language = sweep.language(spec)
    pretrain(
        language=language,
        model=spec.model,
        algorithm=spec.algorithm,
        pretrain=spec.pretrain,
        seed=spec.seeds,
        journal=alone,
    )
    models = [
        load_model(checkpoint_directory(journal.directory, 30), spec.model, language)
        for journal in (run, alone)
    ]
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_killed_driver_is_gone_on_with(
    command: Callable, raysweep: Callable, expected: Any, tmp_path: Path
) -> None:
    file = tmp_path / "language.yaml"
    file.write_text("\n".join(f"{key}: {value}" for key, value in PCFG.encode().items() if value is not None))
    out = tmp_path / "out"
    arguments = ["language", "generate", file, "-o", out, "--workers", 1, "--seed", 3, "--shard-size", 256]
    arguments += ["--sentences", 2000, "--train", 300, "--test", 300]
    arguments += [f"--what={one}" for one in EVERYTHING]
    driver = command(*arguments)
    deadline = time.monotonic() + 120
    while not files(out):
        assert driver.poll() is None, "".join(driver.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    there = len(files(out))
    assert not (out / "summary.json").exists()
    code, printed, err = raysweep(*arguments, "--json")
    assert code == 0, printed + err
    found = json.loads(printed)
    assert found["shards"]["reused"] >= there
    assert {key: found[key] for key in expected[0]} == json.loads(json.dumps(expected[0]))
    assert files(out) == expected[1]
    assert "2,600 of 2,600 sentences" in err
    assert ray.is_initialized()
