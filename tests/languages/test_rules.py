"""Grammars from files: both notations, and every way in which a file can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysweep.errors import ConfigError, DataError
from raysweep.languages import PCFG
from raysweep.languages.pcfg.rules import read

GRAMMARS = Path(__file__).parent / "grammars"


def write(path: Path, text: str) -> Path:
    file = path / "rules"
    file.write_text(text)
    return file


def test_table() -> None:
    grammar = read(GRAMMARS / "table.txt")
    # Numbers sort as numbers, and the start symbol is only the distribution over roots.
    assert grammar.words == ("2", "3", "10")
    assert grammar.symbols == ("A", "B", "C", "D", "S1", "S2")
    assert grammar.root.tolist() == [0, 0, 0, 0, 0.6, 0.4]
    rules = {
        (grammar.symbols[a], grammar.symbols[b], grammar.symbols[c]): p
        for a, b, c, p in zip(grammar.parent, grammar.left, grammar.right, grammar.probability, strict=True)
    }
    # The two lines of A -> C D are one rule, and A's sum of 1.002 is normalised.
    assert len(rules) == 5
    assert rules["A", "C", "D"] == pytest.approx(0.35 / 1.002, abs=1e-15)
    assert rules["A", "C", "C"] == pytest.approx(0.35 / 1.002, abs=1e-15)
    assert grammar.emission[0, 2] == pytest.approx(0.302 / 1.002, abs=1e-15)
    assert PCFG.from_rules(GRAMMARS / "table.txt").max_length == 4


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    lines = (GRAMMARS / "table.txt").read_text().splitlines()
    turned = write(tmp_path, "\n".join(lines[::-1]))
    assert PCFG.from_rules(turned).fingerprint == PCFG.from_rules(GRAMMARS / "table.txt").fingerprint


def test_both_notations_of_one_grammar(tmp_path: Path) -> None:
    text = """
        S -> S1 [0.6] | S2 [0.4]
        S1 -> A B [1.0]
        S2 -> B A [1.0]
        A -> C C [0.35] | C D [0.35] | '10' [0.302]
        B -> D D [0.5] | '2' [0.5]
        C -> '2' [0.25] | '3' [0.75]
        D -> '3' [0.5] | '10' [0.5]
    """
    assert (
        PCFG.from_rules(write(tmp_path, text)).fingerprint
        == PCFG.from_rules(GRAMMARS / "table.txt").fingerprint
    )


def test_text_in_normal_form(tmp_path: Path) -> None:
    text = "S -> A B 'x' [0.5] | A [0.5]\nA -> B [0.25] | 'a' [0.75]\nB -> 'b' [1.0]"
    language = PCFG.from_rules(write(tmp_path, text))
    assert language.words == ("a", "b", "x")
    assert language.max_length == 3
    # S is a root itself and hands the rest of its probability on to A.
    root = dict(zip(language.grammar.symbols, language.grammar.root.tolist(), strict=True))
    assert {name: p for name, p in root.items() if p} == {"S": 0.5, "A": 0.5}

    def probability(*words: str) -> float:
        return language.log_prob(torch.tensor([[language.words.index(w) for w in words]])).exp().item()

    assert probability("a") == pytest.approx(0.375, abs=1e-15)
    assert probability("b") == pytest.approx(0.125, abs=1e-15)
    assert probability("a", "b", "x") == pytest.approx(0.375, abs=1e-15)
    assert probability("b", "b", "x") == pytest.approx(0.125, abs=1e-15)


def test_a_start_symbol_inside_the_rules(tmp_path: Path) -> None:
    language = PCFG.from_rules(write(tmp_path, "S -> A [0.5] | S A [0.5]\nA -> 'a' [1.0]"), max_length=3)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    # Lengths 1, 2, 3 have 1/2, 1/4, 1/8 and share what is kept.
    for n, p in ((1, 4 / 7), (2, 2 / 7), (3, 1 / 7)):
        assert language.log_prob(ids[:, :n]).exp().item() == pytest.approx(p, abs=1e-15)
    assert language.length_probabilities.tolist() == pytest.approx([0, 4 / 7, 2 / 7, 1 / 7], abs=1e-15)
    assert PCFG.from_rules(tmp_path / "rules").max_length == 32


def test_start_line_and_default_start(tmp_path: Path) -> None:
    text = "A -> 'a' [1.0]\nB -> A A [1.0]"
    assert read(write(tmp_path, text)).longest() == 1
    assert read(write(tmp_path, "%start B\n" + text)).longest() == 2


def test_sums_within_one_per_cent_are_normalised(tmp_path: Path) -> None:
    grammar = read(write(tmp_path, "S A B 0.995\nA x 1.009\nB y 1"))
    assert grammar.probability.tolist() == [1.0]
    assert np.array_equal(grammar.emission, [[1, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("S A B 1\nB y 1\nA x 0.5\nA y 0.4", r"rules:3: the rules of A sum to 0\.9;"),
        ("S A B 1\nA x 1\nB y 1.02", r"rules:3: 1\.02 is not a probability between 0 and 1"),
        ("S A B 1\nA x -1\nB y 1", r"rules:2: -1 is not a probability"),
        ("S A B nan", r"rules:1: nan is not a probability"),
        ("S A B 1\n\n# x\nA x 1", r"rules:1: the symbol B has no rules"),
        ("S A B C 1", r"rules:1: 5 fields"),
        ("S 1", r"rules:1: 2 fields"),
        ("S A B one", r"rules:1: 'one' is not a probability"),
        ("A b 1", r"the start symbol S has no rules"),
        ("", r"holds no rules"),
        ("# only this", r"holds no rules"),
        ("S A A 1\nA S S 1", r"no rule that can be reached makes a word"),
        ("S A A 1\nA A A 0.999\nA S S 0.001", r"no rule that can be reached makes a word"),
        (
            "S -> A [0.5] | B [0.5]\nA -> B [0.5] | 'x' [0.5]\nB -> A [0.1] | 'y' [0.9]",
            r"rules:[23]: rules to single symbols form a cycle: (A -> B -> A|B -> A -> B)",
        ),
        ("S -> S [0.5] | 'x' [0.5]", r"rules:1: rules to single symbols form a cycle: S -> S"),
        ("S -> 'x'", r"rules:1: a rule of S has no \[probability\]"),
        ("S -> 'x' [1.0] 'y'", r"rules:1: expected '\|'"),
        ("S -> 'x' [0.5] | [0.5]", r"rules:1: a rule of S is empty"),
        ("S -> 'x' [1.0]\nS = 'y'", r"rules:2: expected 'SYMBOL -> \.\.\.'"),
        ("S -> ? [1.0]", r"rules:1: not understood from '\? \[1\.0\]' on"),
        ("S -> 'x' [p]", r"rules:1: 'p' is not a probability"),
        ("%first S\nS -> 'x' [1.0]", r"rules:1: '%first S' is not understood"),
        ("%start T\nS -> 'x' [1.0]", r"the start symbol T has no rules"),
        ("S -> 'x' [0.5] \\\n | A [0.5]", r"rules:1: the symbol A has no rules"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PCFG.from_rules(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="path: there is no file"):
        PCFG.from_rules(tmp_path / "nothing")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "rules").write_bytes(b"S \xff")
    with pytest.raises(DataError, match="not UTF-8"):
        read(tmp_path / "rules")


def test_no_sentence_short_enough(tmp_path: Path) -> None:
    file = write(tmp_path, "S A A 1\nA B B 1\nB x 1")
    assert PCFG.from_rules(file).max_length == 4
    with pytest.raises(DataError, match="no sentence of at most 3 words; raise max_length"):
        PCFG.from_rules(file, max_length=3)
