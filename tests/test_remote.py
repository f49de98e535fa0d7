"""Paths in object stores: whole objects, creation where nothing is, listings, copies, and faults."""

from __future__ import annotations

import errno
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helpers.azure import azure_server
from helpers.hadoop import HadoopServer, hadoop_server
from helpers.object_store import Fault, ObjectStore
from raysweep.files import move_aside, names, remove_tree, rename, write_atomic
from raysweep.remote import RemotePath, listed, local_place
from raysweep.remote.cache import cache_root, local_copy, prune, read_verified
from raysweep.remote.client import Entry


def test_a_remote_path_is_a_path_that_keeps_its_kind() -> None:
    path = RemotePath("s3://bucket/results") / "scaling" / "runs"
    assert str(path) == "s3://bucket/results/scaling/runs"
    assert (path.name, str(path.parent), path.suffix) == ("runs", "s3://bucket/results/scaling", "")
    assert str(path.with_name("x.json")) == "s3://bucket/results/scaling/x.json"
    assert str(path.relative_to(path.parent)) == "runs"
    assert pickle.loads(pickle.dumps(path)) == path  # noqa: S301
    for other in (path.parent, path / "a", path.resolve(), path.absolute(), pickle.loads(pickle.dumps(path))):  # noqa: S301
        assert isinstance(other, RemotePath)


def test_nothing_falls_through_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = RemotePath("s3://bucket/results/file")
    calls = [
        lambda: os.open(path, os.O_RDONLY),
        lambda: os.stat(path),
        lambda: os.path.isdir(path),
        lambda: path.rename("other"),
        lambda: path.replace("other"),
        lambda: path.symlink_to("other"),
        lambda: path.chmod(0o600),
        lambda: path.rmdir(),
        lambda: path.open("wb"),
        lambda: list(path.rglob("*")),
        lambda: list(path.glob("**/*.json")),
        lambda: path.write_text("text"),
    ]
    for call in calls:
        with pytest.raises((TypeError, OSError), match=r"object store|cannot be"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def azure() -> Iterator[RemotePath]:
    with azure_server() as found:
        yield found


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopServer]:
    with hadoop_server(tmp_path_factory.mktemp("hadoop")) as found:
        yield found


@pytest.fixture(params=["s3", "azure", "hadoop"])
def root(request: pytest.FixtureRequest) -> RemotePath:
    """An empty folder in a store of each sort that a server is installed of."""
    if request.param == "s3":
        found: RemotePath = request.getfixturevalue("store").root
        return found
    other = request.getfixturevalue(request.param)
    place: RemotePath = other.root if request.param == "hadoop" else other
    return place / request.node.originalname


def test_files_are_written_read_listed_moved_and_removed(root: RemotePath) -> None:
    folder = root / "sweep"
    assert names(folder) == []
    assert not folder.exists()
    assert not folder.is_dir()
    write_atomic(folder / "sweep.json", b"old")
    write_atomic(folder / "sweep.json", b"new")
    write_atomic(folder / "runs" / "a" / "run.json", b"{}")
    write_atomic(folder / "runs-of-another" / "run.json", b"{}")
    assert names(folder) == ["runs", "runs-of-another", "sweep.json"]
    assert (folder / "sweep.json").read_bytes() == b"new" == (folder / "sweep.json").open("rb").read()
    assert (folder / "sweep.json").is_file()
    assert not (folder / "sweep.json").is_dir()
    assert (folder / "runs").is_dir()
    assert not (folder / "runs").is_file()
    assert (folder / "sweep.json").stat().st_size == 3
    assert [str(path) for path in root.glob("*/sweep.json")] == [str(folder / "sweep.json")]
    assert [path.parent.name for path in folder.glob("runs/*/run.json")] == ["a"]
    moved = move_aside(folder / "runs", folder / "quarantine")
    assert moved is not None
    assert (moved / "a" / "run.json").read_bytes() == b"{}"
    assert names(folder) == ["quarantine", "runs-of-another", "sweep.json"]
    assert move_aside(folder / "runs", folder / "quarantine") is None
    rename(folder / "sweep.json", folder / "other.json")
    assert not (folder / "sweep.json").exists()
    assert (folder / "other.json").read_bytes() == b"new"
    remove_tree(folder / "quarantine")
    assert names(folder) == ["other.json", "runs-of-another"]
    with pytest.raises(FileNotFoundError):
        (folder / "absent").read_bytes()
    with pytest.raises(FileNotFoundError):
        (folder / "absent").unlink()
    (folder / "absent").unlink(missing_ok=True)


def test_of_many_that_create_an_object_one_succeeds(root: RemotePath) -> None:
    path = root / "claim"

    def create(k: int) -> bool:
        try:
            path.create(b"%d" % k)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = [k for k, done in enumerate(pool.map(create, range(16))) if done]
    assert len(won) == 1
    assert path.read_bytes() == b"%d" % won[0]


def test_files_that_come_and_go_in_one_folder_are_written_and_removed_whole(root: RemotePath) -> None:
    def come_and_go(k: int) -> None:
        for _ in range(3):
            path = root / "a" / "b" / f"{k}"
            path.write_bytes(b"%d" % k)
            assert path.read_bytes() == b"%d" % k
            path.unlink()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(8)))
    assert root.entries() == {}
    remove_tree(root / "a")
    assert names(root) == []


def test_a_folder_that_goes_while_others_are_listed_hides_none_of_them(root: RemotePath) -> None:
    for k in range(8):
        write_atomic(root / f"{k}" / "file", b"x")
    expected = {str(root / f"{k}" / "file") for k in range(8)}
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            # An empty file of Hadoop is written in milliseconds.
            for k in range(8):
                write_atomic(root / f"{k}" / "brief" / "file", b"")
                remove_tree(root / f"{k}" / "brief")

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(come_and_go)
        try:
            for _ in range(100):
                assert expected <= set(root.entries())
        finally:
            ended.set()
        busy.result()


def test_a_name_node_that_is_restarted_is_waited_for(hadoop: HadoopServer) -> None:
    folder = hadoop.root / "restart"
    (folder / "old").write_bytes(b"old")
    ended = threading.Event()

    def write_on() -> None:
        while not ended.is_set():
            (folder / "again").write_bytes(b"again")

    with ThreadPoolExecutor(3) as pool:
        # One request is under way when the name node dies.
        busy = pool.submit(write_on)
        time.sleep(1)
        hadoop.kill("namenode")
        read, written = pool.submit((folder / "old").read_bytes), pool.submit((folder / "new").create, b"new")
        time.sleep(1)
        assert not read.done()
        assert not written.done()
        hadoop.start("namenode")
        assert read.result() == b"old"
        written.result()
        ended.set()
        busy.result()
    assert (folder / "new").read_bytes() == b"new"
    assert names(folder) == ["again", "new", "old"]


def test_a_full_hadoop_is_told_as_a_full_disk(hadoop: HadoopServer) -> None:
    folder = hadoop.root / "full"
    write_atomic(folder / "old", b"old")
    hadoop.run("dfsadmin", "-setSpaceQuota", "1m", "/results/full")
    with pytest.raises(OSError, match="QuotaExceeded") as raised:
        write_atomic(folder / "new", bytes(1000))
    assert raised.value.errno == errno.EDQUOT
    assert list(folder.children()) == ["old"]


def test_a_name_node_that_cannot_be_found_is_told_at_once() -> None:
    pytest.importorskip("hdfs_native", reason="pip install 'raysweep[hdfs]'")
    for place, what in {"nowhere.invalid:8020": "known", "service": "HADOOP_CONF_DIR"}.items():
        began = time.monotonic()
        with pytest.raises(OSError, match=what):
            (RemotePath(f"hdfs://{place}/results") / "record").read_bytes()
        assert time.monotonic() - began < 60


def test_a_creation_whose_answer_is_lost_is_the_creators(store: ObjectStore) -> None:
    path = store.root / "claim"
    store.faults.append(Fault("PUT", "/claim", unanswered=True))
    path.create(b"mine")
    assert not any(fault.times for fault in store.faults)
    assert store.requests["PUT"] > 1
    with pytest.raises(FileExistsError):
        path.create(b"other")
    assert path.read_bytes() == b"mine"


def test_requests_that_the_store_refuses_for_a_while_are_repeated(store: ObjectStore) -> None:
    path = store.root / "record.json"
    store.faults += [Fault(method, "/record", times=3, refused=True) for method in ("PUT", "GET")]
    store.faults.append(Fault("GET", "list-type=2", times=2, refused=True))
    write_atomic(path, b"{}")
    assert path.read_bytes() == b"{}"
    assert names(store.root) == ["record.json"]
    assert not any(fault.times for fault in store.faults)


def test_a_store_out_of_reach_is_an_os_error_that_names_the_url(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import botocore.exceptions
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"retries": {"max_attempts": 1}, "connect_timeout": 1}})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="Could not connect") as raised:
        (store.root / "record.json").read_bytes()
    assert raised.value.filename == str(store.root / "record.json")
    assert isinstance(raised.value.__cause__, botocore.exceptions.BotoCoreError | OSError)


def test_a_timeout_is_repeated(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"read_timeout": 1}})
    write_atomic(store.root / "record.json", b"{}")
    store.faults.append(Fault("GET", "/record", hung=3.0))
    assert (store.root / "record.json").read_bytes() == b"{}"
    assert store.requests["GET"] == 2


_UPLOAD = """
import sys
from raysweep.remote import RemotePath
RemotePath(sys.argv[1]).write_bytes(bytes(120 << 20))
"""


def test_a_process_killed_in_an_upload_leaves_the_old_object(store: ObjectStore) -> None:
    path = store.root / "model.safetensors"
    write_atomic(path, b"old")
    store.faults.append(Fault("PUT", "partNumber=3", times=9, hung=600.0))
    process = subprocess.Popen([sys.executable, "-c", _UPLOAD, str(path)])
    while store.faults[0].times == 9:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert path.read_bytes() == b"old"
    assert names(store.root) == ["model.safetensors"]


_WRITE = """
import sys
from raysweep.remote import RemotePath
RemotePath(sys.argv[1]).write_bytes(bytes(1 << 30))
"""


def test_a_process_killed_in_a_write_to_hadoop_leaves_the_old_file(hadoop: HadoopServer) -> None:
    path = hadoop.root / "killed" / "model.safetensors"
    write_atomic(path, b"old")
    process = subprocess.Popen([sys.executable, "-c", _WRITE, str(path)])
    while len(path.parent.children()) == 1:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert path.read_bytes() == b"old"
    assert names(path.parent) == ["model.safetensors"]
    remove_tree(path.parent)
    assert "killed" not in names(hadoop.root)


def test_an_upload_that_fails_for_good_leaves_the_old_object(store: ObjectStore) -> None:
    path = store.root / "model.safetensors"
    write_atomic(path, b"old")
    store.faults.append(Fault("POST", "uploadId=", times=1000, refused=True))
    with pytest.raises(OSError, match="reduce your request rate"):
        write_atomic(path, bytes(120 << 20))
    assert path.read_bytes() == b"old"
    assert names(store.root) == ["model.safetensors"]


def test_a_listing_reads_as_the_store_does_by_few_requests(store: ObjectStore) -> None:
    folder = store.root / "sweep"
    for run in range(5):
        for k in range(4):
            write_atomic(folder / "runs" / f"r{run}" / "records" / f"{k}.json", b"%d %d" % (run, k))
        write_atomic(folder / "runs" / f"r{run}" / "checkpoints" / "step-1" / "model", bytes(100))
    write_atomic(folder / "sweep.json", b"{}")
    write_atomic(folder / "files" / "a.yaml.json", b"[]")

    def read() -> list[object]:
        found: list[object] = [names(folder), names(folder / "none"), (folder / "none").exists()]
        for run in names(folder / "runs"):
            records = folder / "runs" / run / "records"
            found += [(name, (records / name).read_bytes()) for name in names(records)]
            found += [names(records.parent / "checkpoints"), (records / "0.json").stat().st_size]
        return [*found, [str(path) for path in folder.glob("files/*.json")]]

    slow = read()
    for gets in (20, 0):
        # Files that are no records are not read.  The second time, only what has changed is read again.
        store.requests.clear()
        with listed(folder), listed(folder / "runs" / "r0"):
            assert read() == slow
        assert store.requests == {"LIST": 2 + 1 + 5, **({"GET": gets} if gets else {})}
    write_atomic(folder / "runs" / "r3" / "records" / "2.json", b"changed")
    store.requests.clear()
    with listed(folder):
        assert (folder / "runs" / "r3" / "records" / "2.json").read_bytes() == b"changed"
        assert (folder / "runs" / "r3" / "records" / "3.json").read_bytes() == b"3 3"
    assert store.requests["GET"] == 1


def test_a_listing_sees_the_writes_of_its_own_thread_alone(store: ObjectStore) -> None:
    folder = store.root / "sweep"
    write_atomic(folder / "a" / "1.json", b"1")
    with listed(folder):
        write_atomic(folder / "b" / "2.json", b"2")
        write_atomic(folder / "a" / "1.json", b"11")
        assert names(folder) == ["a", "b"]
        assert (folder / "b" / "2.json").read_bytes() == b"2"
        assert (folder / "a" / "1.json").stat().st_size == 2
        (folder / "b" / "2.json").unlink()
        assert names(folder) == ["a"]
        assert not (folder / "b").exists()
        assert move_aside(folder / "a" / "1.json", folder / "quarantine") is not None
        assert names(folder) == ["quarantine"]
        other = threading.Thread(target=write_atomic, args=(folder / "c", b"3"))
        other.start()
        other.join()
        assert names(folder) == ["quarantine"]
    assert names(folder) == ["c", "quarantine"]


def test_a_damaged_or_missing_cache_costs_requests_alone(store: ObjectStore) -> None:
    path = store.root / "sweep" / "record.json"
    write_atomic(path, b"{}")
    for spoil in (b"", b"no database" * 500, None):
        with listed(path.parent):
            assert path.read_bytes() == b"{}"
        small = cache_root() / "small.db"
        small.unlink() if spoil is None else small.write_bytes(spoil)
    with listed(path.parent):
        assert path.read_bytes() == b"{}"


def test_an_altered_copy_of_a_small_object_is_not_taken_for_it(store: ObjectStore) -> None:
    path = store.root / "sweep" / "record.json"
    write_atomic(path, b'{"value": 1}')
    with listed(path.parent):
        assert path.read_bytes() == b'{"value": 1}'
    with sqlite3.connect(cache_root() / "small.db") as database:
        ((content,),) = database.execute("SELECT content FROM small").fetchall()
        altered = content.replace(b"1}", b"7}")
        assert altered != content
        database.execute("UPDATE small SET content = ?", (altered,))
    with listed(path.parent):
        assert path.read_bytes() == b'{"value": 1}'


def test_the_token_of_a_content_that_came_back_is_another_one() -> None:
    first = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    told = [
        {"size": 3, "ETag": '"abc"', "LastModified": first},
        {"size": 3, "ETag": '"abc"', "LastModified": first + timedelta(seconds=1)},
        {"size": 3, "etag": "x", "generation": "7", "updated": "2026-01-01T12:00:00.5Z"},
    ]
    entries = [Entry.of(info) for info in told]
    assert len({entry.token for entry in entries}) == 3
    assert [entry.time - first.timestamp() for entry in entries] == [0.0, 1.0, 0.5]


def test_a_copy_is_made_once_and_again_when_the_object_changes(store: ObjectStore) -> None:
    path = store.root / "000000.safetensors"
    assert local_copy(path) is None
    for content in (b"one", b"two"):
        write_atomic(path, content)
        store.requests.clear()
        copies = [local_copy(path) for _ in range(3)]
        assert all(copy is not None and copy.read_bytes() == content for copy in copies)
        # The client asks for the size of an object that may be large.
        assert store.requests == {"HEAD": 3 + 1, "GET": 1}


def test_a_damaged_copy_is_not_taken_for_the_object(store: ObjectStore) -> None:
    import hashlib

    path, content = store.root / "model", b"weights"
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(path, content)
    assert read_verified(path, digest) == (content, digest)
    (blob,) = (cache_root() / "blobs").iterdir()
    store.requests.clear()
    assert read_verified(path, digest) == (content, digest)
    assert not store.requests
    blob.write_bytes(b"weighty")
    assert read_verified(path, digest) == (content, digest)
    assert store.requests["GET"] == 1
    write_atomic(path, b"altered")
    blob.unlink()
    assert read_verified(path, digest) == (b"altered", hashlib.sha256(b"altered").hexdigest())
    assert not blob.exists()


def test_the_copies_that_were_used_last_stay(tmp_path: Path) -> None:
    for k in range(5):
        (tmp_path / str(k)).write_bytes(bytes(10))
        os.utime(tmp_path / str(k), (k, k))
    os.utime(tmp_path / "1", (9, 9))
    prune([tmp_path], keep=tmp_path / "0", most=30)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "4"}


def test_what_concerns_one_machine_lies_on_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    assert local_place(tmp_path / "sweep") == tmp_path / "sweep"
    ours, other = (local_place(RemotePath(f"s3://{name}/results/sweep")) for name in ("a", "b"))
    assert ours != other
    assert ours.name == "sweep"
    assert ours.is_relative_to(tmp_path / "cache")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
