"""The ledger, shards, logs and plans in an object store do as they do on a disk, by few requests."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_sweeps as tiny
from helpers import training_fakes
from helpers.object_store import Fault, ObjectStore
from raysweep.errors import CheckpointError, ConfigError, IdentityError
from raysweep.remote import RemotePath, listed, local_place
from raysweep.remote.cache import cache_root
from raysweep.sweep import Ledger, make_plan
from raysweep.sweep import logs as logs_module
from raysweep.sweep import snapshot as snapshot_module
from raysweep.sweep.cancel import request, requested, withdraw
from raysweep.sweep.index import INDEX
from raysweep.sweep.lock import Holder
from raysweep.sweep.logs import BoundedLog, logs_of
from raysweep.sweep.records import StopRecord, encode, evaluation_name
from raysweep.sweep.run_state import run_states
from raysweep.sweep.shards import ShardStore
from raysweep.sweep.storage import storage_root
from raysweep.sweep.stored import find_stored, save_sweep, stored_names
from raysweep.sweep.tidy import tidy
from raysweep.training import World, pretrain
from raysweep.training import checkpoint as disk
from raysweep.training.checkpoint import LoopState, remove, verify, write_checkpoint
from raysweep.training.journal import survey


@pytest.fixture
def sweep(load: Any, store: ObjectStore) -> Any:
    return replace(load(), storage=store.root)


def deeds(sweep: Any) -> list[Any]:
    """Do with a run whatever a launch may do, and return what the ledger says of it on the way."""
    ledger, spec = sweep.ledger(), sweep.runs[0]
    (evaluation,) = spec.evaluations.values()
    run = ledger.run(spec)
    said: list[Any] = [run.visible, ledger.run_ids(), run.record_names(), run.failures(), run.checkpoints()]
    for step in spec.milestones:
        tiny.checkpoint(run, step)
        # In an object store this file says that a checkpoint is whole.
        (run.checkpoint_directory(step) / disk.STATE).write_bytes(b"{}")
    said += [run.steps_on_disk(), [record.step for record in run.checkpoints()], run.curve()]
    first = run.record_evaluation(50, evaluation, tiny.measured(1.0), seconds=1.0)
    said.append(run.record_evaluation(50, evaluation, tiny.measured(2.0), seconds=2.0) == first)
    said.append([record.metrics for record in run.evaluations()])
    run.record_failure("no", error="Nan", step=3)
    said += [[(f.message, f.step) for f in run.failures()], run.retry(), run.failures(), len(run.retries())]
    run.record_failure("again", error="Nan", step=4)
    said.append([name for name, _ in run.record_names()])
    run.record_stop("f" * 64, StopRecord(by="asha", step=50, metric="count", value=1.0, time=0.0))
    stop = run.stop("f" * 10)
    said.append(stop is not None and stop.step)
    run.save_arrays(50, "counted", "0" * 64, 0, {"a": np.arange(3)})
    arrays = run.load_arrays(50, "counted", "0" * 64, 0)
    said += [arrays is not None and arrays["a"].tolist(), run.load_arrays(50, "counted", "0" * 64, 1)]
    # What is damaged is moved aside, and counts as absent.
    (run.arrays_directory(50, "counted", "0" * 64) / "000000.npz").write_bytes(b"torn")
    said.append(run.load_arrays(50, "counted", "0" * 64, 0))
    run.record_path("failure-002.json").write_bytes(b"{")
    said += [run.failures(), [name for name, _ in run.record_names()]]
    run.quarantine(run.checkpoints()[0], "altered")
    said += [run.steps_on_disk(), sorted(p.name.rpartition("-")[0] for p in _aside(run.directory))]
    remove(run.directory, 50)
    said += [run.steps_on_disk(), [record.step for record in run.checkpoint_records()], ledger.clean()]
    other = run.identity_path.read_bytes().replace(spec.training_identity.encode(), b"0" * 64)
    run.identity_path.write_bytes(other)
    with pytest.raises(IdentityError):
        ledger.run(spec)
    return said


def _aside(directory: Path) -> list[Path]:
    return [path for path in (directory / "quarantine").iterdir() if not path.name.endswith(".txt")]


def test_the_ledger_says_what_it_says_on_a_disk(sweep: Any, load: Any, tmp_path: Path) -> None:
    on_disk = replace(sweep, storage=tmp_path / "results")
    assert deeds(sweep) == deeds(on_disk)
    ours = {str(path.relative_to(sweep.directory)) for path in sweep.directory.below()}
    theirs = {str(p.relative_to(on_disk.directory)) for p in on_disk.directory.rglob("*") if p.is_file()}
    assert {name for name in ours if "quarantine" not in name} == {n for n in theirs if "quarantine" not in n}


def test_plans_states_and_tables_are_those_of_a_disk_by_few_requests(
    sweep: Any, store: ObjectStore, tmp_path: Path
) -> None:
    on_disk = replace(sweep, storage=tmp_path / "results")
    for each in (sweep, on_disk):
        for spec in each.runs[:3]:
            tiny.finish(each.ledger().run(spec), spec)
        each.ledger().run(each.runs[3]).record_failure("no", error="Nan")
        save_sweep(each)

    def told(each: Any) -> tuple[Any, ...]:
        plan = make_plan(each)
        table = tidy(each.ledger(), each)
        return [(run.run_id, run.state) for run in plan.runs], table.to_csv(), len(run_states(each))

    slow = told(on_disk)
    for gets in (True, False):
        store.requests.clear()
        with listed(sweep.directory):
            assert told(sweep) == slow
        # One list of the sweep, of its runs and of its files, and one of each run.
        assert store.requests["LIST"] == 3 + 4
        assert bool(store.requests["GET"]) == gets
        assert store.requests.keys() <= {"LIST", "GET"}
    assert stored_names(store.root) == [sweep.name]
    assert find_stored(sweep.name, str(store.root)).storage == store.root
    with pytest.raises(ConfigError, match=f"no sweep of that name in {store.root}"):
        find_stored("other", str(store.root))


def test_an_index_spares_other_nodes_the_records(
    sweep: Any, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "MANY", 1)
    monkeypatch.setattr(snapshot_module, "SETTLED", -3600.0)  # the records are of this second
    for spec in sweep.runs[:3]:
        tiny.finish(sweep.ledger().run(spec), spec)
    first = run_states(sweep)
    assert INDEX in sweep.directory.names()
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "another"))
    store.requests.clear()
    assert run_states(sweep) == first
    assert store.requests["GET"] == 1
    # What has changed since is read, and nothing else.
    spec = sweep.runs[0]
    run, (evaluation,), step = (
        sweep.ledger().open(spec.run_id),
        spec.evaluations.values(),
        spec.milestones[-1],
    )
    record = run.evaluation(step, evaluation)
    path = run.record_path(evaluation_name(step, evaluation.key, record.identity))
    path.write_bytes(encode(record.model_copy(update={"seconds": 7.5})))
    store.requests.clear()
    again = run_states(sweep)
    assert store.requests["GET"] == 2
    assert [state.seconds for state in again[1:]] == [state.seconds for state in first[1:]]
    assert again[0].seconds == first[0].seconds - record.seconds + 7.5


def write(run: Any, step: int) -> dict[str, disk.FileDigest]:
    torch.manual_seed(step)
    model = torch.nn.Linear(3, 3)
    state = LoopState(step=step, train_seconds=1.0, losses=(), precision="highest")
    return write_checkpoint(run.directory, model, torch.optim.SGD(model.parameters()), state)


def test_a_checkpoint_counts_once_it_is_whole(sweep: Any, store: ObjectStore) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    files = write(run, 50)
    assert run.steps_on_disk() == {50}
    store.requests.clear()
    verify(run.checkpoint_directory(50), files)
    assert store.requests["GET"] == 0  # this node has written it
    # An upload that ends in the middle leaves nothing that counts, also of one that was there before.
    store.faults.append(Fault("PUT", "optimizer", times=100, refused=True))
    with pytest.raises(disk.StorageError, match="cannot be written to s3://"):
        write(run, 50)
    store.faults.clear()
    assert run.steps_on_disk() == set()
    with pytest.raises(CheckpointError, match="missing"):
        disk.read_state(run.checkpoint_directory(50))
    assert write(run, 50) == files
    verify(run.checkpoint_directory(50), files)


def test_workers_that_share_weights_write_and_read_objects(
    load: Any, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("pretrain.steps=6", "pretrain.milestones=[2,6]", "pretrain.batch_size=5")
    sizes = ("model.dropout=0", "algorithm.warmup_steps=2", "algorithm.lr=0.01")
    sweep = replace(load(tiny.BASE, *steps, *sizes), storage=store.root)
    [spec] = sweep.runs
    run = sweep.ledger().run(spec)
    arguments = {
        "language": spec.language.build(),
        "model": spec.model,
        "algorithm": spec.algorithm,
        "pretrain": spec.pretrain.model_copy(update={"steps": 2, "milestones": (2,)}),
        "seed": spec.seeds,
        "journal": run,
    }
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raysweep.training", "torch._dynamo", "torch.distributed.fsdp"])

    def train(number: int) -> None:
        environment = {**os.environ, "RAYSWEEP_CACHE": str(tmp_path / f"cache-{number}")}
        processes = [
            context.Process(
                target=training_fakes.share,
                args=(World(rank, 2, 2), tmp_path / f"rendezvous-{number}", environment, arguments),
                daemon=True,
            )
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0

    train(1)
    [record] = run.checkpoints()
    parts = {f"{kind}-0000{k}-of-00002.safetensors" for kind in ("model", "optimizer") for k in (1, 2)}
    assert record.files.keys() == {*parts, disk.STATE}
    verify(run.checkpoint_directory(2), record.files)
    # Another node, with other workers, goes on; two workers could as well, and end where it does.
    arguments["pretrain"] = spec.pretrain
    pretrain(**arguments)
    assert [r.step for r in run.checkpoints()] == [6, 2]
    model = disk.load_model(run.checkpoint_directory(6), spec.model, arguments["language"])
    run.quarantine(run.checkpoints()[0], "to be trained again")
    train(2)
    again = disk.load_model(run.checkpoint_directory(6), spec.model, arguments["language"])
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_an_altered_checkpoint_is_found_on_another_node(
    sweep: Any, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    files = write(run, 50)
    record = tiny.checkpoint(run, 100)
    run.commit(record.model_copy(update={"step": 50, "files": files, "curve": ()}))
    model = run.checkpoint_directory(50) / disk.MODEL
    model.write_bytes(bytes(len(model.read_bytes())))
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "another"))
    with pytest.raises(CheckpointError, match="sha256 differs"):
        verify(run.checkpoint_directory(50), files)
    found, complete = survey(run, [50, 200])
    assert (found, complete) == (None, False)
    assert run.steps_on_disk() == set()
    assert any("step-00000050" in path.name for path in _aside(run.directory))


def test_a_record_that_was_damaged_when_it_was_listed_is_not_moved_once_it_is_whole(sweep: Any) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    run.record_failure("no", error="Nan")
    path = run.record_path("failure-001.json")
    whole = path.read_bytes()
    path.write_bytes(b"{")
    with listed(sweep.directory):
        assert path.read_bytes() == b"{"
        other = threading.Thread(target=path.write_bytes, args=(whole,))
        other.start()
        other.join()
        assert path.read_bytes() == b"{"
        assert [failure.message for failure in run.failures()] == ["no"]
    assert path.read_bytes() == whole


def test_a_damaged_shard_is_moved_aside_and_a_damaged_copy_is_not(store: ObjectStore) -> None:
    shards = ShardStore.make(store.root / "shards", {"a": 1})
    assert shards.missing(2) == [0, 1]
    assert shards.read(0) is None
    shards.write(0, {"ids": np.arange(5, dtype=np.int16)})
    for spoil in (False, True):
        mapped = shards.mapped(0, "ids")
        assert mapped is not None
        assert mapped.tolist() == [0, 1, 2, 3, 4]
        (copy,) = (cache_root() / "objects").iterdir()
        if not spoil:
            content = bytearray(copy.read_bytes())
            content[-1] ^= 1
            copy.write_bytes(content)
    assert shards.stored() == [0]
    shards.path(0).write_bytes(b"torn")
    assert shards.read(0) is None
    assert shards.stored() == []
    assert ShardStore.make(store.root / "shards", {"a": 1}).directory == shards.directory
    with pytest.raises(IdentityError, match="a 1, not of a 2"):
        ShardStore.make(store.root / "shards", {"a": 2})


def test_a_log_goes_on_where_another_process_has_ended(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.root / "logs"
    followed, said = logs_of(folder), list[str]()
    for node in ("one", "two"):
        monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / node))
        log = BoundedLog(folder / "train-0.log")
        for k in range(2):
            log.handle(logging.LogRecord("raysweep", logging.INFO, "", 0, f"{node} {k}", None, None))
        log.close()
        said += [entry.text.rpartition(": ")[2] for entry in followed.new()]
    assert said == ["one 0", "one 1", "two 0", "two 1"]
    assert followed.new() == []


def test_a_log_that_begins_anew_is_read_on(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "MOST_BYTES", 400)
    monkeypatch.setattr(logs_module, "_SEND", 0.05)
    log, followed, said = BoundedLog(store.root / "logs" / "a.log"), logs_of(store.root / "logs"), list[str]()
    for k in range(12):
        record = logging.LogRecord("raysweep", logging.INFO, "", 0, f"line {k:02d} " + "x" * 40, None, None)
        record.created += k  # logs differ in the time of their first line
        log.handle(record)
        log._send()
        said += [entry.text.partition("line ")[2][:2] for entry in followed.new()]
    log.close()
    assert said == [f"{k:02d}" for k in range(12)]


def test_a_request_to_stop_goes_through_the_store(store: ObjectStore) -> None:
    directory = store.root / "sweep"
    assert requested(directory, 1.0) is None
    request(directory, Holder(1, "elsewhere", 1.0))
    assert requested(directory, 1.0) is not None
    assert requested(directory, 2.0) is None
    withdraw(directory)
    assert requested(directory, 1.0) is None


def test_what_is_no_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    root = storage_root("s3://bucket/our/results/")
    assert (str(root), type(root)) == ("s3://bucket/our/results", RemotePath)
    monkeypatch.setenv("RAYSWEEP_STORAGE", "s3://bucket/results")
    assert str(storage_root(None)) == "s3://bucket/results"
    for url, what in {
        "ftp://host/results": "mount another one as a folder",
        "http://host/results": "mount another one as a folder",
        "s3://": "names no bucket",
        "hdfs:///results": "names no name node; write hdfs://HOST:PORT/FOLDER",
    }.items():
        with pytest.raises(ConfigError, match=what):
            storage_root(url)

    with pytest.raises(ConfigError, match="write s3:// in a text"):
        storage_root(Path("s3://bucket/results"))


def test_a_missing_client_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(protocol: str) -> Callable[..., Any]:
        raise ImportError(f"Install the client of {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", absent)
    with pytest.raises(ConfigError, match=r"pip install 'raysweep\[gs\]'"):
        storage_root("gs://bucket/results")


def test_a_store_is_not_asked_by_a_machine_that_has_a_folder(tmp_path: Path) -> None:
    assert local_place(tmp_path) == tmp_path
    with listed(tmp_path):
        assert Ledger(tmp_path).run_ids() == []
    assert Counter(path.name for path in tmp_path.iterdir()) == Counter()
