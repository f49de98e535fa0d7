"""Corpora: what becomes of documents, who sees which, and preparation that is killed, repeated and shared."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import numpy as np
import pytest
import tokenizers
import torch

from helpers import local_texts
from raysweep.errors import ConfigError, DataError
from raysweep.languages.corpus import Corpus, prepare, source, tokenizer
from raysweep.languages.permutation import permuted
from raysweep.languages.text_split import is_held_out, normalised

SMALL = {"tokenizer": {"train": "wordpiece", "vocabulary": 400}, "length": 24, "held_out": 0.2}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def rows(corpus: Corpus) -> np.ndarray:
    return corpus._rows.take(np.arange(len(corpus._rows)))


def digests(corpus: Corpus) -> list[str]:
    return [shard.sha256 for part in corpus.manifest.parts for shard in part.shards.values()]


def packed(corpus: Corpus, texts: list[str], *, held_out: bool) -> np.ndarray:
    """The rows of one split of one part, the slow way."""
    config, flat = corpus.config, []
    for text in texts:
        if is_held_out(text, config.held_out, config.seed) == held_out:
            flat += corpus.words._tokenizer.encode(text, add_special_tokens=False).ids
            flat.append(corpus.words._tokenizer.token_to_id("[SEP]"))
    whole = len(flat) // config.length
    return np.array(flat[: whole * config.length]).reshape(whole, config.length)


def test_documents_are_packed_in_order_whatever_file_they_are_in() -> None:
    texts = list(local_texts.documents())
    found = {name: Corpus.open(str(path), **SMALL) for name, path in local_texts.files().items()}
    for corpus in found.values():
        assert np.array_equal(rows(corpus), packed(corpus, texts, held_out=False))
        assert np.array_equal(rows(corpus.held_out), packed(corpus, texts, held_out=True))
        assert corpus.vocabulary_size == 400
        assert corpus.manifest.total("train", "documents") + corpus.manifest.total(
            "held_out", "documents"
        ) == len(texts)
    assert len({tuple(digests(corpus)) for corpus in found.values()}) == 1
    # The identity is that of the files, and these are different files.
    assert len({corpus.fingerprint for corpus in found.values()}) == 3


def test_parts_are_packed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "PART_DOCUMENTS", 40)
    texts = list(local_texts.documents())
    corpus = Corpus.open(str(local_texts.files()["jsonl"]), **SMALL)
    parts = [texts[k : k + 40] for k in range(0, len(texts), 40)]
    assert len(corpus.manifest.parts) == len(parts) > 3
    for split, held_out in ((corpus, False), (corpus.held_out, True)):
        wanted = np.concatenate([packed(corpus, part, held_out=held_out) for part in parts])
        assert np.array_equal(rows(split), wanted)
    some = np.random.default_rng(0).integers(0, len(corpus._rows), 100)
    assert np.array_equal(corpus._rows.take(some), rows(corpus)[some])


def test_no_held_out_text_is_trained_on(tmp_path: Path) -> None:
    """Copies, also in other case, spacing or Unicode form, are on one side, and rows hold nothing else."""
    once = list(local_texts.documents())
    again = [text.upper().replace(" ", "\t ") for text in once[::2]]
    wide = ["ﬁ" + text for text in once[:40]]
    narrow = ["FI" + text for text in once[:40]]
    texts = once + again + wide + narrow
    path = local_texts.write(tmp_path, texts)["jsonl"]
    corpus = Corpus.open(str(path), **SMALL)
    sides: dict[str, set[bool]] = {}
    for text in corpus._source.documents():
        sides.setdefault(normalised(text), set()).add(is_held_out(text, 0.2, 0))
    assert len(sides) == len({normalised(text) for text in once + wide})
    assert all(len(found) == 1 for found in sides.values())
    # Documents, between their separators, are in the rows of their own side and nowhere in the other's.
    split = {False: rows(corpus).astype(">u2").tobytes(), True: rows(corpus.held_out).astype(">u2").tobytes()}
    end, found = corpus.words.separator.to_bytes(2), Counter[bool]()
    for text in once:
        ids = end + corpus.words.encode([text])[0].astype(">u2").tobytes()
        (side,) = sides[normalised(text)]
        assert ids not in split[not side]
        found[side] += ids in split[side]
    # All but the first and the last of a split.
    assert sum(found.values()) >= len(once) - 4
    assert min(found.values()) > 50


def test_sides_depend_on_nothing_but_the_text() -> None:
    texts = local_texts.documents()
    sides = {text: is_held_out(text, 0.3, 5) for text in texts}
    assert {text: is_held_out(text, 0.3, 5) for text in reversed(texts)} == sides
    assert sides != {text: is_held_out(text, 0.3, 6) for text in texts}
    # A larger share holds out more, and all that a smaller one does.
    assert all(is_held_out(text, 0.6, 5) for text in texts if sides[text])
    n, share = 20_000, 0.05
    count = sum(is_held_out(f"document {k}", share, 1) for k in range(n))
    assert abs(count - n * share) < 4.5 * math.sqrt(n * share * (1 - share))


@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 1000])
def test_a_permutation_is_one(n: int) -> None:
    index = torch.arange(n)
    orders = []
    for epoch in (0, 1, 2**33):
        places = permuted(index, n, seed=3, purpose="x", epoch=torch.full((n,), epoch))
        assert torch.equal(places.sort().values, index)
        orders.append(places)
        some = permuted(index[n // 2 :], n, seed=3, purpose="x", epoch=torch.full((n - n // 2,), epoch))
        assert torch.equal(some, places[n // 2 :])
    if n > 16:
        assert not torch.equal(orders[0], orders[1])
        assert not torch.equal(orders[0], orders[2])
        other = permuted(index, n, seed=4, purpose="x", epoch=torch.zeros_like(index))
        assert not torch.equal(orders[0], other)


@pytest.mark.parametrize("n", [3, 7, 37])
def test_permutations_are_uniform_in_pairs(n: int) -> None:
    """Pearson's statistic of where two neighbours go over many epochs, standardised."""
    epochs = 20_000
    epoch = torch.arange(epochs)
    first, second = (
        permuted(torch.full((epochs,), k), n, seed=1, purpose="x", epoch=epoch) for k in (n // 2, n // 2 + 1)
    )
    counts = torch.bincount(first * n + second, minlength=n * n).double().view(n, n)
    assert bool((counts.diagonal() == 0).all())
    pairs = counts[~torch.eye(n, dtype=torch.bool)]
    freedom = len(pairs) - 1
    expected = epochs / len(pairs)
    z = (((pairs - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)
    assert abs(z) < 4.5


def test_an_epoch_has_every_row_once() -> None:
    corpus = Corpus.open(str(local_texts.files()["txt"]), **SMALL)
    corpus.prepare()
    for language in (corpus, corpus.held_out):
        n = language.distinct
        assert n is not None
        drawn = language.sample_latent(2 * n + 3, seed=7)
        epochs = drawn.latents["row"][:n], drawn.latents["row"][n : 2 * n]
        assert all(sorted(epoch.tolist()) == list(range(n)) for epoch in epochs)
        assert not torch.equal(*epochs)
        assert torch.equal(drawn.ids, torch.from_numpy(rows(language))[drawn.latents["row"]])
        assert not torch.equal(language.sample_latent(n, seed=8).latents["row"], epochs[0])
    assert corpus.fingerprint != corpus.held_out.fingerprint


def test_making_a_corpus_tokenises_nothing(cache: Path) -> None:
    corpus = Corpus.open(str(local_texts.files()["txt"]), **SMALL)
    assert len(corpus.fingerprint) == 64
    assert corpus.distinct is None
    assert not (cache / "corpus").exists()
    corpus.prepare()
    assert corpus.distinct == corpus.manifest.total("train", "rows")
    again = Corpus.open(str(local_texts.files()["txt"]), **SMALL)
    assert again.distinct == corpus.distinct


def test_identity_is_content_not_place(tmp_path: Path) -> None:
    texts = list(local_texts.documents())
    here, there = (local_texts.write(tmp_path / name, texts)["jsonl"] for name in ("a", "b"))
    corpus = Corpus.open(str(here), **SMALL)
    assert Corpus.open(str(there), **SMALL).store.folder == corpus.store.folder
    for change in (
        {"length": 25},
        {"held_out": 0.3},
        {"seed": 1},
        {"documents": 50},
        {"rows_per_document": 2},
    ):
        assert Corpus.open(str(here), **{**SMALL, **change}).fingerprint != corpus.fingerprint
    # A file that has changed under the same name is another source.
    here.write_text(here.read_text().replace("e", "a", 1))
    assert Corpus.open(str(here), **SMALL).fingerprint != corpus.fingerprint


def test_folders_patterns_lines_files_and_joined_rows(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for k, text in enumerate(["one\ntwo\n\nthree", "four\nfive"]):
        (tmp_path / "books" / f"{k}.txt").write_text(text)

    def documents(name: str, **fields: object) -> list[str]:
        config = Corpus.open(str(tmp_path / name), **{**SMALL, **fields}).config
        return list(source.resolve(config).documents())

    assert documents("books") == ["one\ntwo", "three", "four\nfive"]
    assert documents("books/*.txt", document="file") == ["one\ntwo\n\nthree", "four\nfive"]
    assert documents("books/1.txt", document="line") == ["four", "five"]
    assert documents("books", documents=2) == ["one\ntwo", "three"]
    assert documents("books", document="line", rows_per_document=2, documents=2) == ["one\ntwo", "\nthree"]
    config = Corpus.open(str(tmp_path / "books"), **SMALL, rows_per_document=2).config
    assert list(source.resolve(config).documents(1)) == ["four\nfive"]


def test_documents_without_text_are_left_out(tmp_path: Path) -> None:
    lines = [{"text": text} for text in local_texts.documents()]
    lines[1:1] = [{"text": None}, {"text": "  \n"}, {"text": ""}]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    whole = Corpus.open(str(local_texts.files()["jsonl"]), **SMALL)
    corpus = Corpus.open(str(path), **SMALL)
    assert np.array_equal(rows(corpus), rows(whole))
    assert sum(part.documents for part in corpus.manifest.parts) == len(lines)


def test_a_tokenizer_is_trained_on_training_documents_alone(tmp_path: Path) -> None:
    held = [f"zyzzyva {k} zyzzyva" for k in range(400)]
    held = [text for text in held if is_held_out(text, 0.2, 0)]
    path = local_texts.write(tmp_path, [*held, *local_texts.documents()])["jsonl"]
    corpus = Corpus.open(str(path), **SMALL)
    plain = Corpus.open(str(local_texts.files()["jsonl"]), **SMALL)
    assert len(held) > 50
    assert corpus.words.digest == plain.words.digest
    assert np.array_equal(rows(corpus), rows(plain))


def test_training_a_tokenizer_is_deterministic() -> None:
    texts = local_texts.documents()
    # Every training has hash tables of an order of its own.
    here, *others = (tokenizer.train(lambda: iter(texts), 500) for _ in range(4))
    assert others == [here] * 3
    words = tokenizer.Words(here)
    vocabulary = json.loads(here)["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(500)) == list(range(words.size))
    with pytest.raises(DataError, match=r"give \d+ word pieces, not 90000; use \d+ or fewer"):
        tokenizer.train(lambda: iter(texts), 90_000)


def test_a_tokenizer_of_a_folder_and_its_separator(tmp_path: Path) -> None:
    content = tokenizer.train(lambda: iter(local_texts.documents()), 300)
    (tmp_path / "tokenizer.json").write_bytes(content)
    fields = {**SMALL, "tokenizer": str(tmp_path)}
    corpus = Corpus.open(str(local_texts.files()["txt"]), **fields)
    assert corpus.vocabulary_size == 300
    texts = list(local_texts.documents())
    assert np.array_equal(rows(corpus), packed(corpus, texts, held_out=False))
    other = Corpus.open(str(local_texts.files()["txt"]), **fields, separator="[CLS]")
    assert other.fingerprint != corpus.fingerprint
    assert other.words.separator == 2
    with pytest.raises(ConfigError, match="separator: the tokenizer has no token 'end'"):
        Corpus.open(str(local_texts.files()["txt"]), **fields, separator="end")
    # What looks like a special token in a text is text.
    (ids,) = corpus.words.encode(["a [MASK] [SEP]"])
    assert ids.tolist().count(corpus.words.separator) == 1
    assert 4 not in ids
    sample = corpus.sample_latent(1, seed=0)
    shown = corpus.words._tokenizer.decode(sample.ids[0].tolist(), skip_special_tokens=False)
    assert corpus.text(sample.ids[0]) == shown


def test_wide_vocabularies_take_wider_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    content = tokenizer.train(lambda: iter(local_texts.documents()), 300)
    for size, dtype in ((1 << 16, np.uint16), ((1 << 16) + 1, np.int32)):
        pieces = {"[SEP]": 3, "x": size - 1}
        monkeypatch.setattr(tokenizers.Tokenizer, "get_vocab", lambda *_, pieces=pieces, **__: pieces)
        words = tokenizer.Words(content)
        assert (words.size, words.dtype) == (size, dtype)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"source": "nowhere/*.txt"}, ConfigError, "no file, folder or pattern 'nowhere/"),
        ({"source": "./nowhere.txt"}, ConfigError, "no file, folder or pattern"),
        ({"source": "{here}"}, ConfigError, r"holds \.jsonl, \.parquet, \.txt; files of one kind"),
        ({"revision": "main"}, ConfigError, "revision: belongs to a data set on the hub"),
        ({"tokenizer": "{here}"}, ConfigError, "tokenizer: folder .* has no tokenizer.json"),
        ({"tokenizer": 3}, ConfigError, "tokenizer: 3 is neither a hub name nor a folder"),
        ({"tokenizer": {"train": "bpe"}}, ConfigError, "tokenizer: train: Input should be 'wordpiece'"),
        ({"held_out": 1.0}, ConfigError, "held_out: .*less than 1"),
        ({"length": 8192, "held_out": 0.01}, DataError, "'held_out': not one row of 8192 tokens"),
        ({"text_field": "body", "source": "{here}/texts.jsonl"}, DataError, "no 'body', but id, text"),
        ({"text_field": "id", "source": "{here}/texts.jsonl"}, DataError, "'id' holds int, not text"),
    ],
)
def test_what_cannot_be_a_corpus_is_said(fields: dict, error: type[Exception], message: str) -> None:
    here = local_texts.files()["txt"]
    data = {"source": str(here), **SMALL, **fields}
    data = {k: v.replace("{here}", str(here.parent)) if isinstance(v, str) else v for k, v in data.items()}
    with pytest.raises(error, match=message):
        Corpus.open(data.pop("source"), **data).prepare()


def test_a_damaged_shard_is_said() -> None:
    corpus = Corpus.open(str(local_texts.files()["txt"]), **SMALL)
    corpus.prepare()
    path = corpus.store.shard_path("train", 0)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match="missing or damaged; remove"):
        corpus.sample(1, seed=0)


def test_a_hub_data_set_is_known_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is asked for its commit, the commit is what is read, and a commit is not asked for."""
    commit, asked, opened = "0123456789" * 4, [], []

    def info(_: object, name: str, *, revision: str | None) -> SimpleNamespace:
        asked.append((name, revision))
        if name == "someone/nothing":
            raise huggingface_hub.errors.OfflineModeIsEnabled("no hub here")
        return SimpleNamespace(sha=commit)

    def load(name: str, subset: str, **options: object) -> datasets.IterableDataset:
        opened.append((name, subset, options))
        table = datasets.Dataset.from_dict({"id": [0] * len(texts), "body": texts})
        return table.to_iterable_dataset()

    texts = list(local_texts.documents())
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", load)
    fields = {**SMALL, "text_field": "body", "subset": "plain", "split": "all"}
    corpus = Corpus.open("someone/text", **fields, revision="refs/convert/parquet")
    assert asked == [("someone/text", "refs/convert/parquet")]
    assert not opened
    assert np.array_equal(rows(corpus), packed(corpus, texts, held_out=False))
    wanted = ("someone/text", "plain", {"split": "all", "revision": commit, "streaming": True})
    assert all(call == wanted for call in opened)
    pinned = Corpus.open("someone/text", **fields, revision=commit)
    assert len(asked) == 1
    assert pinned.fingerprint == corpus.fingerprint
    with pytest.raises(DataError, match="hub did not name its data set: OfflineModeIsEnabled"):
        Corpus.open("someone/nothing", **fields)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    here = str(Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}


#: Prepares a corpus of small parts; a line a part, and the digests of the whole.
PREPARE = """
import json, sys
from raysweep.languages.corpus import Corpus, prepare
from raysweep.languages.corpus.store import Store
prepare.PART_DOCUMENTS = 20
write = Store.write_part
def say(self, k, *rest):
    part = write(self, k, *rest)
    print("part", k, flush=True)
    if "wait" in sys.argv:
        sys.stdin.readline()
    return part
Store.write_part = say
corpus = Corpus.open(sys.argv[1], **json.loads(sys.argv[2]))
corpus.prepare()
print(json.dumps([shard.sha256 for part in corpus.manifest.parts for shard in part.shards.values()]))
"""


def arguments() -> list[str]:
    return [str(local_texts.files()["jsonl"]), json.dumps(SMALL)]


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The digests of a corpus that was prepared without any trouble, elsewhere."""
    with monkeypatch.context() as patch:
        patch.setenv("RAYSWEEP_CACHE", str(tmp_path / "elsewhere"))
        patch.setattr(prepare, "PART_DOCUMENTS", 20)
        return digests(Corpus.open(arguments()[0], **SMALL))


def test_a_killed_preparation_goes_on(wanted: list[str], cache: Path) -> None:
    command = [sys.executable, "-c", PREPARE, *arguments(), "wait"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "part 0\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "part 1\n"
        process.send_signal(signal.SIGKILL)
    (folder,) = (cache / "corpus").iterdir()
    assert not (folder / "manifest.json").exists()
    # What a kill in the middle of a write leaves: a file that has no name yet, a shard without its record.
    (folder / ".tmp-train-00002.npy-0").write_bytes(b"half")
    (folder / "train-00002.npy").write_bytes(b"half")
    *lines, last = python(PREPARE, *arguments()).stdout.splitlines()
    assert lines[0] == "part 2"
    assert json.loads(last) == wanted
    assert not list(folder.glob(".*"))


def test_processes_that_prepare_at_once_take_turns(wanted: list[str]) -> None:
    command = [sys.executable, "-c", PREPARE, *arguments()]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all(json.loads(lines[-1]) == wanted for lines in outputs)
    made = Counter(line for lines in outputs for line in lines[:-1])
    assert len(made) == len(wanted) // 2
    assert set(made.values()) == {1}


@pytest.mark.parametrize(
    ("text", "document", "remark"),
    [
        (
            "many words " * 20,
            "paragraph",
            "no blank line, so all of that is one document; put a blank line after",
        ),
        (
            "a line\nanother\n\n",
            "paragraph",
            "no blank line, so all of that is one document; set document: line",
        ),
        (
            "words " * 200_000,
            "line",
            "no line break in its first 1,000,000 characters, so all of that is one",
        ),
        ("a line\n\nanother\n", "paragraph", None),
        ("a line\nanother\n", "line", None),
        ("a line", "file", None),
        ("", "paragraph", None),
    ],
)
def test_a_text_of_one_long_line_is_remarked_on(
    text: str, document: str, remark: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    found = Corpus.open(str(path), **SMALL, document=document).remarks()
    assert len(found) == (remark is not None)
    assert remark is None or f"language.source: {path} has {remark}" in found[0]
