"""Data drawn ahead: the same items, one chunk ahead, by a thread that ends when its consumer does."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import training_fakes as fakes
from raysweep.errors import DataError
from raysweep.training import ahead, checkpoint_directory, pretrain
from raysweep.training.ahead import drawn, drawn_ahead

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PATIENCE = 20.0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("raysweep-data")]


@pytest.fixture(autouse=True)
def no_thread_survives() -> Iterator[None]:
    assert threads() == []
    yield
    assert threads() == []


def test_the_next_chunk_is_made_while_this_one_is_used_and_no_other() -> None:
    begun = [threading.Event() for _ in range(4)]
    makers = set()

    def chunks() -> Iterator[list[int]]:
        for k, event in enumerate(begun):
            event.set()
            makers.add(threading.current_thread().name)
            yield [2 * k, 2 * k + 1]

    found = []
    for item in drawn_ahead(chunks()):
        found.append(item)
        k = item // 2
        if k + 1 < len(begun):
            assert begun[k + 1].wait(PATIENCE)
        if k + 2 < len(begun):
            # The one thread has nothing to do until the next chunk is asked for.
            assert not begun[k + 2].wait(0.01)
    assert found == list(range(8))
    assert threading.current_thread().name not in makers
    assert len(makers) == 1


@pytest.mark.parametrize("error", [DataError("no such sentence"), KeyboardInterrupt(), OSError(5, "gone")])
def test_an_error_comes_where_its_chunk_would_have(error: BaseException) -> None:
    def chunks() -> Iterator[list[int]]:
        yield [1, 2]
        raise error

    found = []
    with pytest.raises(type(error)) as caught:
        found.extend(drawn_ahead(chunks()))
    assert caught.value is error
    assert found == [1, 2]


def test_closing_waits_for_the_chunk_in_the_making() -> None:
    ended = []

    def chunks() -> Iterator[list[int]]:
        yield [1]
        time.sleep(0.1)
        ended.append(True)
        yield [2]

    items = drawn_ahead(chunks())
    assert next(items) == 1
    items.close()
    assert ended == [True]


@pytest.mark.parametrize(
    ("device", "since", "processors", "own"),
    [
        # The second chunk shows what drawing costs.
        (CPU, 0, 2, [False, False, True, True, True, True]),
        (CPU, 3, 2, [False, False, False, False, True, True]),
        (CPU, 6, 2, [False] * 6),
        (CPU, 0, 1, [False] * 6),
        (GPU, 6, 1, [True] * 6),
    ],
    ids=["costly", "costly later", "cheap", "no processor is free", "gpu"],
)
def test_drawing_gets_a_thread_where_that_pays(
    device: torch.device,
    since: int,
    processors: int,
    own: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks are used for 1 s each; drawing one takes 40 ms, and from chunk `since` on 60 ms."""
    now, makers, found = [0.0], [], []
    monkeypatch.setattr(ahead, "_processors", lambda: processors)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    def chunks() -> Iterator[list[int]]:
        for k in range(6):
            now[0] += 0.06 if k >= since else 0.04
            makers.append(threading.current_thread().name)
            yield [k]

    for item in drawn(chunks(), device):
        found.append(item)
        now[0] += 1.0
    assert found == list(range(6))
    assert [name.startswith("raysweep-data") for name in makers] == own


def run(directory: Path, **options: Any) -> Any:
    calls = {k: options.pop(k) for k in ("stop",) if k in options}
    journal = fakes.FolderJournal(directory)
    pretrain(journal=journal, **fakes.arguments(**options), **calls)
    return journal


def weights(journal: Any) -> bytes:
    return (checkpoint_directory(journal.directory, 60) / "model.safetensors").read_bytes()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, and a thread for them."""
    monkeypatch.setattr(fakes.Walk, "drawn_at_once", 13 * 7)
    monkeypatch.setattr("raysweep.training.loop.drawn", lambda chunks, device: drawn_ahead(chunks))


@pytest.mark.parametrize("mask", ["one", 0.3])
def test_a_run_is_bitwise_the_same(tmp_path: Path, mask: Any, request: pytest.FixtureRequest) -> None:
    plain = weights(run(tmp_path / "plain", pretrain={"mask": mask}))
    request.getfixturevalue("always")
    assert weights(run(tmp_path / "ahead", pretrain={"mask": mask})) == plain


@pytest.mark.usefixtures("always")
def test_the_thread_ends_with_a_run_that_stops_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def stop() -> bool:
        seen.append(threads())
        return len(seen) == 9

    run(tmp_path / "stopped", stop=stop)
    assert seen[-1] == ["raysweep-data_0"]
    assert threads() == []

    def fail() -> bool:
        raise ValueError("not this way")

    with pytest.raises(ValueError, match="not this way"):
        run(tmp_path / "failed", stop=fail)
    assert threads() == []

    draw = fakes.Walk.sample_latent

    def refuse(self: Any, n: int, *, seed: int, start: int = 0) -> Any:
        if start >= 13 * 21:
            raise DataError(f"sentence {start}: gone")
        return draw(self, n, seed=seed, start=start)

    monkeypatch.setattr(fakes.Walk, "sample_latent", refuse)
    with pytest.raises(DataError, match="sentence 273: gone"):
        run(tmp_path / "refused")
    assert [r.step for r in fakes.FolderJournal(tmp_path / "refused").checkpoints()] == [21, 20, 14, 7]
