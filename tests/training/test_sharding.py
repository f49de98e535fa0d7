"""Weights shared out over workers: the training of one worker, checkpoints of any number of them."""

import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from helpers import training_fakes as fakes
from raysweep.errors import CheckpointError, ConfigError
from raysweep.models import EncoderConfig, gpu
from raysweep.training import World, checkpoint_directory, load_model, pretrain
from raysweep.training.pieces import Parts, fill, part_names, pieces
from raysweep.training.start import state_content
from raysweep.training.step import Stepper
from raysweep.training.verified import FileDigest

Job = tuple[Path, int, dict[str, Any]]

PATIENCE = 200.0
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["raysweep.training", "torch._dynamo", "torch.distributed.fsdp"])

#: Where a model does not key dropout by sentence, its draws are those of a worker.
ENCODER: dict[str, Any] = {"model": {"dropout": 0.0}}
#: 13 sentences a step, which no number of workers shares evenly, with several masked words.
SETTINGS: dict[str, Any] = {"mask": 0.3, "checkpoint_every": None}


def until(step: int, *, algorithm: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return the options of a run to a step, its only milestone."""
    pretraining = {**SETTINGS, "steps": step, "milestones": [step], **options.pop("pretrain", {})}
    return {**ENCODER, **options, "algorithm": algorithm or {}, "pretrain": pretraining}


def run(processes: Sequence[Any]) -> None:
    """Start processes, and wait until all have ended well."""
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0


def together(size: int, rendezvous: Path, jobs: Sequence[Job]) -> None:
    """Train one run after another with `size` workers."""
    processes = [
        context.Process(target=fakes.work_in_turn, args=(rank, size, rendezvous, list(jobs)), daemon=True)
        for rank in range(size)
    ]
    run(processes)


def alone(directory: Path, options: dict[str, Any]) -> None:
    """Train with one worker, by compiled passes where the model has them."""
    given = {name: value for name, value in options.items() if name != "packed"}
    pretrain(journal=fakes.FolderJournal(directory), **fakes.arguments(**given))


def tensors(directory: Path, step: int, name: str) -> dict[str, Tensor]:
    """Return what the files of a checkpoint hold, put together by hand."""
    place = checkpoint_directory(directory, step)
    parts = [load_file(path) for path in sorted(place.glob(f"{name}*.safetensors"))]
    assert len({frozenset(part) for part in parts}) == 1
    return {
        key: torch.cat([part[key] for part in parts]) if value.ndim else value
        for key, value in parts[0].items()
    }


RUNS = {
    "adamw, clipped, averaged": until(12, algorithm={"clip_norm": 0.1, "ema": 0.9}),
    "in parts, recomputed": until(
        12, model={"dropout": 0.0, "checkpointing": True}, pretrain={"micro_batch": 3}
    ),
    "packed": until(12, packed=True),
    "one masked word": until(12, pretrain={"mask": "one"}),
    "momentum, token": until(
        12, algorithm={"kind": "sgd", "momentum": 0.9}, model={"dropout": 0.0, "cls": True}
    ),
    "sam": until(12, algorithm={"kind": "sam"}),
    "sam, same": until(12, algorithm={"kind": "sam", "ascent": "same"}),
    "adversarial": until(
        12, algorithm={"kind": "adversarial", "train": 24, "validation": 16, "examples": 100}
    ),
    "muon": until(12, algorithm={"kind": "muon"}),
    "lstm": until(12, model={"kind": "lstm", "shape": "8/2", "dropout": 0.0}),
}
#: Four workers hold nothing of the shortest tensors, and of others unequal parts.
FOUR = ["adamw, clipped, averaged", "lstm"]
#: How far workers may end from one, as a share of the way.  Sums of float32 in another order, and compiled
#: passes beside torch's, differ by some 1e-7; Muon's iterations are in bfloat16.
TOLERANCE = 2e-5
TOLERANCES = {"muon": 5e-2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of several workers: starting these takes longer than training."""
    folder = tmp_path_factory.mktemp("sharded")
    # A run with dropout and averages, interrupted or not, and one that never has the same workers again.
    kept = {"algorithm": {"ema": 0.9}, "model": {"dropout": 0.1}}
    changed = folder / "changed"
    alone(changed, until(4))
    together(
        2,
        folder / "rendezvous-2",
        [
            *((folder / "two" / name, 2, options) for name, options in RUNS.items()),
            (folder / "whole", 2, until(12, **kept)),
            (folder / "resumed", 2, until(5, **kept)),
            (folder / "resumed", 2, until(12, **kept)),
            (changed, 2, until(6)),
            (changed, 1, until(7)),
        ],
    )
    together(
        4,
        folder / "rendezvous-4",
        [
            *((folder / "four" / name, 4, RUNS[name]) for name in FOUR),
            *((folder / "groups" / name, 2, RUNS[name]) for name in FOUR),
            (changed, 4, until(8)),
            (changed, 2, until(9)),
        ],
    )
    alone(changed, until(12))
    return folder


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a run of one worker, by name."""
    folder = tmp_path_factory.mktemp("single")

    def make(name: str) -> Path:
        if not (folder / name).exists():
            alone(folder / name, RUNS[name])
        return folder / name

    return make


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], options: Any, share: float) -> None:
    arguments = fakes.arguments(model=options["model"])
    model = arguments["model"].build(arguments["language"], seed=arguments["seed"])
    start = dict(model.named_parameters())
    assert found.keys() == expected.keys() == start.keys()
    way = torch.cat([(expected[name] - p).flatten() for name, p in start.items()]).norm()
    apart = torch.cat([(expected[name] - found[name]).flatten() for name in start]).norm()
    assert apart < share * way
    assert way > 0.1


@pytest.mark.parametrize(
    ("workers", "name"), [*(("two", n) for n in RUNS), *((w, n) for w in ("four", "groups") for n in FOUR)]
)
def test_workers_that_share_weights_train_as_one(
    workers: str, name: str, trained: Path, single: Callable[[str], Path]
) -> None:
    found, expected = (tensors(place, 12, "model") for place in (trained / workers / name, single(name)))
    assert_near(found, expected, RUNS[name], TOLERANCES.get(name, TOLERANCE))


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "shards"), [(1, 1), (2, 1), (2, 2)], ids=["one", "copies", "shards"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_workers_on_a_gpu_train_as_one_on_a_processor(
    precision: str, size: int, shards: int, tmp_path: Path
) -> None:
    """Two workers share one GPU here, and so sum up by gloo; in bfloat16 copies train by kernels."""
    assert gpu.missing() is None
    options = until(12, model={"shape": "32/2/2/64", "dropout": 0.0}, pretrain={"precision": "float32"})
    alone(tmp_path / "processor", options)
    options["pretrain"]["precision"] = precision
    processes = [
        context.Process(
            target=fakes.share,
            args=(
                World(rank, size, shards),
                tmp_path / "rendezvous",
                {},
                {"journal": fakes.FolderJournal(tmp_path / "gpu"), "device": "cuda"}
                | fakes.arguments(**options),
            ),
            daemon=True,
        )
        for rank in range(size)
    ]
    run(processes)
    found, expected = (tensors(tmp_path / place, 12, "model") for place in ("gpu", "processor"))
    assert_near(found, expected, options, 1e-3 if precision == "float32" else 5e-2)


def test_clipping_was_at_work(single: Callable[[str], Path], tmp_path: Path) -> None:
    alone(tmp_path, until(12, algorithm={"ema": 0.9}))
    clipped = single("adamw, clipped, averaged")
    assert not torch.equal(*(tensors(p, 12, "model")["decoder.bias"] for p in (tmp_path, clipped)))


@pytest.mark.parametrize(("workers", "number"), [("two", 2), ("four", 4), ("groups", 2)])
def test_each_worker_writes_what_it_holds(
    workers: str, number: int, trained: Path, single: Callable[[str], Path]
) -> None:
    name = "adamw, clipped, averaged"
    place = checkpoint_directory(trained / workers / name, 12)
    [record] = fakes.FolderJournal(trained / workers / name).checkpoints()
    assert record.files.keys() == {path.name for path in place.iterdir()}
    expected = tensors(single(name), 12, "optimizer")
    for kind in ("model", "trained", "optimizer"):
        parts = part_names(record.files, f"{kind}.safetensors")
        assert len(parts) == number
        for path in (place / part for part in parts):
            assert (
                len(load_file(path)["token_embedding.weight" + "/exp_avg" * (kind == "optimizer")])
                == 16 / number
            )
    found = tensors(trained / workers / name, 12, "optimizer")
    assert {key: value.shape for key, value in found.items()} == {k: v.shape for k, v in expected.items()}


def test_resumed_is_bitwise_uninterrupted(trained: Path) -> None:
    whole, resumed = (
        {
            path.name: path.read_bytes()
            for path in checkpoint_directory(trained / name, 12).glob("*.safetensors")
        }
        for name in ("whole", "resumed")
    )
    assert len(whole) == 6
    assert whole == resumed
    assert len(fakes.FolderJournal(trained / "resumed").checkpoints()) == 2


def test_a_run_goes_on_with_any_workers(trained: Path, tmp_path: Path) -> None:
    """One worker, two and four that share, one copy each, groups of two, and one again."""
    counts = {4: 1, 6: 2, 7: 1, 8: 4, 9: 2, 12: 1}
    records = {r.step: r for r in fakes.FolderJournal(trained / "changed").checkpoints()}
    assert {s: len(part_names(r.files, "model.safetensors")) for s, r in records.items()} == counts
    alone(tmp_path, until(12))
    for name in ("model", "optimizer"):
        found, expected = (tensors(place, 12, name) for place in (trained / "changed", tmp_path))
        assert found.keys() == expected.keys()
    assert_near(*(tensors(p, 12, "model") for p in (trained / "changed", tmp_path)), until(12), TOLERANCE)


def test_a_sharded_checkpoint_is_a_model_and_a_start(trained: Path, tmp_path: Path) -> None:
    run = trained / "four" / "adamw, clipped, averaged"
    place = checkpoint_directory(run, 12)
    arguments = fakes.arguments(**RUNS["adamw, clipped, averaged"])
    model = load_model(place, arguments["model"], arguments["language"])
    expected = tensors(run, 12, "model")
    assert all(torch.equal(p, expected[name]) for name, p in model.named_parameters())
    with pytest.raises(CheckpointError, match="weights of another model"):
        load_model(place, EncoderConfig(shape="8/2/1/16"), arguments["language"])
    # The files of another number of workers are another source.
    contents = [
        state_content(checkpoint_directory(trained / workers / "lstm", 12), keep=True)
        for workers in ("two", "four")
    ]
    assert contents[0].keys() == contents[1].keys() == {"weights", "optimizer"}
    assert all(contents[0][key] != contents[1][key] for key in contents[0])


@pytest.mark.parametrize("damage", ["altered", "gone"])
def test_a_damaged_part_is_set_aside_and_computed_again(
    damage: str, trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "whole", run)
    part = checkpoint_directory(run, 12) / "optimizer-00002-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.unlink() if damage == "gone" else part.write_bytes(bytes(data))
    alone(run, until(13, algorithm={"ema": 0.9}, model={"dropout": 0.1}))
    assert [r.step for r in fakes.FolderJournal(run).checkpoints()] == [13]
    assert part.name in (run / "quarantined-00000012.txt").read_text()


class Rows:
    """The rows of a sharded tensor that a worker holds, as a DTensor gives them."""

    def __init__(self, shape: tuple[int, ...], rows: int) -> None:
        self.shape, self.ndim, self.dtype = torch.Size(shape), len(shape), torch.float32
        self._rows = torch.zeros(rows, *shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def to_local(self) -> Tensor:
        return self._rows


@pytest.mark.parametrize(
    ("written", "reads"),
    [(4, {0: {0}, 1: {1}, 2: {2}, 3: {3}}), (1, {0: {0}, 3: {0}}), (3, {1: {0, 1}, 2: {1, 2}})],
)
def test_a_worker_reads_no_other_rows(written: int, reads: dict[int, set[int]], tmp_path: Path) -> None:
    """With as many workers as have written, its own file alone."""
    whole = torch.arange(24.0).view(12, 2)
    contents = {
        name: save(pieces({"x": whole, "step": torch.tensor(7.0)}, World(k, written, written)))
        for k, name in enumerate(f"m-{k + 1:05d}-of-{written:05d}.st" for k in range(written))
    }
    if written == 1:
        contents = {"m.st": contents.popitem()[1]}
    digests = {name: FileDigest.of(data) for name, data in contents.items()}
    for rank, parts in reads.items():
        place = tmp_path / str(rank)
        place.mkdir()
        for k, (name, data) in enumerate(contents.items()):
            if k in parts:
                (place / name).write_bytes(data)
        found, step = Rows((12, 2), 3), torch.zeros(())
        wanted: dict[str, Any] = {"x": found, "step": step}
        fill(wanted, Parts(place, digests, "m.st"), World(rank, 4, 4))
        assert torch.equal(found.to_local(), whole[3 * rank : 3 * rank + 3])
        assert step == 7
        (place / list(contents)[min(parts)]).unlink()
        with pytest.raises(CheckpointError, match="missing"):
            fill(wanted, Parts(place, digests, "m.st"), World(rank, 4, 4))


def test_a_record_without_all_parts_is_refused(tmp_path: Path) -> None:
    digest = FileDigest.of(b"")
    with pytest.raises(CheckpointError, match=r"its record names no model\.safetensors"):
        Parts(tmp_path, {"model-00001-of-00002.safetensors": digest}, "model.safetensors")


def test_parts_that_some_workers_cannot_fill_are_refused() -> None:
    arguments = fakes.arguments(**until(1, pretrain={"micro_batch": 1}))
    with pytest.raises(ConfigError, match=r"pretrain\.micro_batch: 1 makes more parts than some of the 2"):
        Stepper(
            arguments["model"].build(arguments["language"], seed=0), arguments["algorithm"],
            language=arguments["language"], pretrain=arguments["pretrain"], seed=0, world=World(0, 2, 2),
            device=torch.device("cpu"),
        )  # fmt: skip
