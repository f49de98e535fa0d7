"""The lease of a folder in an object store: one holder at a time, whatever dies or hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from helpers.object_store import Fault, ObjectStore
from raysweep.errors import LockedError, StorageError
from raysweep.remote import RemotePath
from raysweep.sweep import lease as lease_module
from raysweep.sweep.lease import Claim, HeldElsewhereError, Lease, claimed
from raysweep.sweep.lock import SweepLock, held


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A thread that a test has left would meet the faults of the next one."""
    yield
    _wait_for_threads()


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "raysweep-lease":
            thread.join(120)
            assert not thread.is_alive()


def _fast(store: ObjectStore, **more: float) -> Lease:
    return Lease(store.root, beat=0.2, term=more.get("term", 1.5))


def _elsewhere(store: ObjectStore, number: int = 1, **facts: object) -> RemotePath:
    """Write the claim of a process of another machine, whose clock is a day late."""
    claim = replace(Claim.own(), host="elsewhere", renewed=time.time() - 86_400, **facts)  # type: ignore[arg-type]
    path = store.root / "lock" / f"{number:08d}.json"
    path.write_bytes(claim.encode())
    return path


def test_the_lock_goes_from_holder_to_holder(store: ObjectStore) -> None:
    for _ in range(3):
        lock = SweepLock(store.root)
        with lock:
            found = held(store.root)
            assert found is not None
            assert found.started == lock.started
            assert not lock.lost
        assert held(store.root) is None
    assert (store.root / "lock").names() == [f"{k:08d}.json" for k in (1, 2, 3)]


def test_a_second_process_is_refused_by_the_name_of_the_first(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module.Lease.__init__, "__kwdefaults__", {
        **(lease_module.Lease.__init__.__kwdefaults__ or {}), "beat": 0.2, "term": 5.0,
    })  # fmt: skip
    with SweepLock(store.root), pytest.raises(LockedError, match=r"is in use by process \d+ on .*; wait"):
        SweepLock(store.root).acquire()


def test_of_many_that_want_the_lock_one_gets_it(store: ObjectStore) -> None:
    _elsewhere(store, released=True)
    leases = [_fast(store, term=60.0) for _ in range(8)]

    def take(lease: Lease) -> bool:
        try:
            lease.acquire()
        except HeldElsewhereError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, leases)) == 1
    for lease in leases:
        lease.release()


def test_a_holder_that_beats_is_alive_whatever_its_clock_says(store: ObjectStore) -> None:
    path = _elsewhere(store)
    ended = threading.Event()

    def beat() -> None:
        k = 0
        while not ended.wait(0.3):
            k += 1
            _elsewhere(store, beat=k)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(HeldElsewhereError):
            _fast(store, term=60.0).acquire()
    finally:
        ended.set()
        thread.join()
    assert path.exists()
    assert (store.root / "lock").names() == ["00000001.json"]


def test_a_holder_that_has_stopped_is_followed_after_its_term(store: ObjectStore) -> None:
    _elsewhere(store)
    lease, began = _fast(store), time.monotonic()
    lease.acquire()
    assert time.monotonic() - began >= 1.5
    assert claimed(store.root) is not None
    lease.release()


def test_a_dead_process_of_this_machine_is_followed_at_once(store: ObjectStore) -> None:
    command = (
        "import os, sys; from raysweep.sweep.lease import Lease; from raysweep.remote import RemotePath; "
        "Lease(RemotePath(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", command, str(store.root)], check=False)
    assert (store.root / "lock").names() == ["00000001.json"]
    assert held(store.root) is None
    lease = Lease(store.root, beat=60.0, term=3600.0)
    lease.acquire()
    lease.release()


def test_a_holder_that_finds_a_successor_has_lost_the_lock(store: ObjectStore) -> None:
    lease = Lease(store.root, beat=0.2, term=600.0)
    lease.acquire()
    assert not lease.lost
    successor = _elsewhere(store, 2)
    before = successor.read_bytes()
    _wait_for_loss(lease)
    lease.release()
    assert successor.read_bytes() == before
    assert (store.root / "lock").names()[-1] == "00000002.json"


def test_a_holder_that_cannot_renew_has_lost_the_lock(store: ObjectStore) -> None:
    lease = _fast(store)
    lease.acquire()
    store.faults.append(Fault("GET", "list-type=2", times=100_000, refused=True))
    _wait_for_loss(lease)
    store.faults.clear()
    lease.release()
    assert lease.lost
    # It has not said that it has ended, as another one may hold the lock by now.
    assert not Claim.read(store.root / "lock" / "00000001.json").released


def test_a_holder_whose_request_hangs_has_lost_the_lock(store: ObjectStore) -> None:
    lease = _fast(store)
    lease.acquire()
    store.faults.append(Fault("PUT", "/lock/", hung=8.0))
    began = time.monotonic()
    _wait_for_loss(lease)
    assert time.monotonic() - began < 8.0  # it does not wait for the answer
    lease.release()


@pytest.mark.parametrize("released", [False, True])
def test_a_holder_that_has_gone_writes_no_further_beat(store: ObjectStore, released: bool) -> None:
    """Whether it has lost the lock or released it while the store let it wait for a list."""
    lease = _fast(store)
    lease.acquire()
    store.faults.append(Fault("GET", "list-type=2", hung=6.0))
    deadline = time.monotonic() + 120
    while store.faults[0].times:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if released:
        lease.release()
    written = store.requests["PUT"]
    _wait_for_threads()
    assert store.requests["PUT"] == written
    lease.release()


def _wait_for_loss(lease: Lease) -> None:
    deadline = time.monotonic() + 120
    while not lease.lost:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_store_that_writes_over_what_it_shall_create_is_refused(store: ObjectStore) -> None:
    store.careless = True
    with pytest.raises(StorageError, match=r"cannot be written: the store writes over an object"):
        SweepLock(store.root).acquire()
    assert held(store.root) is None


def test_a_claim_of_another_version_is_waited_for(store: ObjectStore) -> None:
    """One that has more fields is read; of one that nobody can read, the holder may live."""
    for content in (b'{"pid": 1, "new": 2}', b"[]"):
        (store.root / "lock" / "00000001.json").write_bytes(content)
        began, lease = time.monotonic(), _fast(store, term=1.0)
        lease.acquire()
        assert time.monotonic() - began >= 1.0
        lease.release()
        for name in (store.root / "lock").names():
            (store.root / "lock" / name).unlink()


def test_a_process_is_not_known_to_be_dead_where_the_system_tells_no_boot() -> None:
    claim = Claim.own()
    assert replace(claim, pid=2**22 + 1).ended  # no process has this number
    assert not replace(claim, pid=2**22 + 1, boot="").ended
    assert not replace(claim, pid=2**22 + 1, host="elsewhere").ended
    assert not claim.ended


def test_a_claim_whose_answer_was_lost_is_held(store: ObjectStore) -> None:
    store.faults.append(Fault("PUT", "/lock/", unanswered=True))
    lease = _fast(store, term=60.0)
    lease.acquire()
    assert not store.faults[0].times
    found = claimed(store.root)
    assert found is not None
    assert not found.released
    lease.release()


def test_a_bucket_that_is_not_there_is_named(store: ObjectStore) -> None:
    with pytest.raises(StorageError, match=r"s3://nowhere/sweep cannot be written: .*bucket does not exist"):
        SweepLock(RemotePath("s3://nowhere/sweep")).acquire()
