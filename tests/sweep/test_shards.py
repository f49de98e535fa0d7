"""Stores of shards: resumable, refused to strangers, and mistrustful of what lies on a disk."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from raysweep.errors import DataError, IdentityError, StorageError
from raysweep.sweep.shards import ShardStore

IDENTITY = {"language": "abc", "seed": 0}


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    return ShardStore.make(tmp_path / "made" / "store", IDENTITY)


def arrays(shard: int, n: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(shard)
    return {
        "log_probs": np.log(rng.random((n, 3, 4), dtype=np.float32)),
        "ids": rng.integers(0, 9, (n, 3)),
        "entropy": rng.random(n),
        "seen": rng.random(n) > 0.5,
        "empty": np.zeros((0, 3), dtype=np.int32),
        "n": np.array(n),
    }


def same(a: dict[str, np.ndarray] | None, b: dict[str, np.ndarray]) -> bool:
    return (
        a is not None
        and set(a) == set(b)
        and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in b)
    )


def test_shards_come_back_as_they_were(store: ShardStore) -> None:
    for shard in (3, 0):
        store.write(shard, arrays(shard))
    assert store.stored() == [0, 3]
    assert store.missing(5) == [1, 2, 4]
    again = ShardStore.make(store.directory, dict(reversed(IDENTITY.items())))
    for shard in (3, 0):
        assert same(again.read(shard), arrays(shard))
    assert again.read(1) is None


def test_arrays_that_are_no_rows_of_memory(store: ShardStore) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    store.write(0, {"turned": whole.T, "part": whole[:, ::2, 1]})
    assert same(store.read(0), {"turned": whole.T, "part": whole[:, ::2, 1]})


def test_the_same_shard_is_the_same_file(store: ShardStore) -> None:
    store.write(0, arrays(0))
    first = store.path(0).read_bytes()
    store.write(0, dict(reversed(arrays(0).items())))
    assert store.path(0).read_bytes() == first


def test_another_identity_is_refused_with_both_named(store: ShardStore) -> None:
    with pytest.raises(IdentityError, match=r"holds shards of seed 0, not of seed 1; name another folder"):
        ShardStore.make(store.directory, {**IDENTITY, "seed": 1})
    with pytest.raises(IdentityError, match=r"positions null, not of positions random"):
        ShardStore.make(store.directory, {**IDENTITY, "positions": "random"})


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    with pytest.raises(DataError, match="not empty"):
        ShardStore.make(tmp_path, IDENTITY)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        ShardStore.make(tmp_path, IDENTITY)


def test_a_folder_that_cannot_be_made_or_seen(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be made"):
        ShardStore.make(Path("/proc/nope"), IDENTITY)
    with pytest.raises(StorageError, match="not visible"):
        ShardStore.find(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("how", ["torn", "empty", "flipped", "header", "swapped"])
def test_damage_is_found_moved_aside_and_repaired(
    store: ShardStore, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(0, arrays(0))
    path = store.path(0)
    content = bytearray(path.read_bytes())
    if how == "torn":
        content = content[:-7]
    elif how == "empty":
        content = bytearray()
    elif how == "flipped":
        content[-1] ^= 1
    elif how == "header":
        content[9] ^= 1
    else:  # an array under the name of another of the same type and shape
        content = bytearray(bytes(content).replace(b'"ids"', b'"idz"'))
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "raysweep.shards"):
        assert store.read(0) is None
    assert "damaged shard moved to" in caplog.text
    assert store.missing(1) == [0]
    assert len(list((store.directory / "quarantine").iterdir())) == 1
    store.write(0, arrays(0))
    assert same(store.read(0), arrays(0))


def test_only_numbers_are_stored(store: ShardStore) -> None:
    for array in (np.array([{}]), np.array(["word"])):
        with pytest.raises(DataError, match="array 'x' of shard 2"):
            store.write(2, {"x": array})
    assert store.stored() == []


def _write_for_ever(directory: Path) -> None:
    store = ShardStore.find(directory)
    while True:
        for shard in range(4):
            store.write(shard, arrays(shard, n=20_000))


def test_killed_writers_leave_nothing_half_done(store: ShardStore) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_for_ever, args=(store.directory,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 30
    while len(store.stored()) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    for writer in writers:
        os.kill(int(writer.pid or 0), signal.SIGKILL)
        writer.join()
    for shard in range(4):
        assert same(store.read(shard), arrays(shard, n=20_000))
    store.clean()
    left = {path.name for path in store.directory.iterdir()}
    assert left == {"identity.json", *(store.path(shard).name for shard in range(4))}
