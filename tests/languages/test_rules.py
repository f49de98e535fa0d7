"""Grammars from files: both notations, and every way in which a file can be wrong."""

from __future__ import annotations

import logging
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
            r"rules:(2: .* form a cycle: A -> B -> A \(lines 2, 3\)|3: .* form a cycle: B -> A -> B "
            r"\(lines 3, 2\)); remove one of them",
        ),
        (
            "S -> S [0.5] | 'x' [0.5]",
            r"rules:1: rules to single symbols form a cycle: S -> S \(line 1\); remove",
        ),
        ("S -> '' [1.0]", r"rules:1: a rule of S has an empty word"),
        ("S S 0.5\nS x 0.5", r"rules:1: rules to single symbols form a cycle: S -> S"),
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


def rules_of(file: Path) -> dict[tuple[str, ...], float]:
    """The rules of a file as a grammar in normal form has them; words in quotes."""
    grammar = read(file)
    out = {("root", grammar.symbols[a]): grammar.root[a] for a in np.nonzero(grammar.root)[0]}
    triples = zip(grammar.parent, grammar.left, grammar.right, strict=True)
    for (a, b, c), p in zip(triples, grammar.probability, strict=True):
        out[grammar.symbols[a], grammar.symbols[b], grammar.symbols[c]] = p
    for a, c in zip(*np.nonzero(grammar.emission), strict=True):
        out[grammar.symbols[a], repr(grammar.words[c])] = grammar.emission[a, c]
    return out


PLAIN = "S -> A B [0.5] | B A [0.5]\nA -> 'a' [0.25] | 'b' [0.75]\nB -> A A [0.5] | 'c' [0.5]\n"


@pytest.mark.parametrize(
    "data",
    [
        PLAIN.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + PLAIN.encode(),
        b"\xef\xbb\xbf%start S\r\n" + PLAIN.replace("\n", "\r\n").encode(),
        PLAIN.replace(" ", "\t").encode(),
        PLAIN.replace("\n", "  \n\n   # a remark -> S\n\t\n   ").encode(),
        PLAIN.replace(" | ", "|").replace(" [", "[").replace(" ->", "->").encode(),
        PLAIN.replace(" | ", "   |\t").replace(" [", "    [ ").replace("]", "  ]").encode(),
        PLAIN.replace("'", '"').encode(),
        PLAIN.replace(" | ", " \\\n | ").encode(),
        PLAIN.rstrip("\n").encode(),
        PLAIN.replace("A -> 'a' [0.25]", "A -> 'a' [0.125] | 'a' [0.125]").encode(),
        b"S A B 0.5\r\nS B A .5\r\n\r\n# remark\r\nA a 0.25\r\nA b 7.5e-1\r\nB A A 0.5\r\nB c 0.5\r\n",
        b"\xef\xbb\xbfS\tA\tB\t0.5\n  S  B   A  .5 \nA 'a' 0.25\nA \"b\" 0.75\nB A A 0.5\nB c 0.25\nB c 0.25",
    ],
)
def test_spacing_comments_quotes_and_line_ends_do_not_matter(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rules").write_bytes(data)
    (tmp_path / "plain").write_text(PLAIN)
    assert rules_of(tmp_path / "rules") == pytest.approx(rules_of(tmp_path / "plain"), abs=1e-15)


def test_quotes_and_marks_in_a_table(tmp_path: Path) -> None:
    """A quoted field is a word, even where a symbol has its name; a lone quote is a word like any other."""
    text = "S A A 0.5\nS 'A' 0.25\nS 'New York' 0.25\nA 's 0.25\nA '' 0.25\nA # 0.25\nA -> 0.25"
    grammar = read(write(tmp_path, text))
    assert set(grammar.words) == {"A", "New York", "'s", "''", "#", "->"}
    short = write(tmp_path, "S 'x' A 0.5\nS x 0.5\nA y 1")
    assert ("S", "'x'", "A") in rules_of(short)


def test_nltk_reads_the_same(tmp_path: Path) -> None:
    import nltk

    text = """
        # remark
        S -> A B [0.5] | B-2 <C> [0.25]|A/x A[0.25]

        A -> 'two words' [.25] | "it's" [0.75]
        A/x -> '->' [0.5] | '|' [0.25] \\
            | '[0.5]' [0.25]
        B -> A A [0.25] | 'c' [0.5] | A A [0.25]
        B-2 -> '#' [1.0]
        <C> -> 'd' [1]
    """.replace("<C>", "C<>")
    theirs: dict[tuple[str, ...], float] = {("root", "S"): 1.0}
    for rule in nltk.PCFG.fromstring(text).productions():
        side = [repr(part) if isinstance(part, str) else part.symbol() for part in rule.rhs()]
        key = (rule.lhs().symbol(), *side)
        theirs[key] = theirs.get(key, 0.0) + rule.prob()
    assert rules_of(write(tmp_path, text)) == pytest.approx(theirs, abs=1e-15)


def test_chains_of_rules_to_single_symbols(tmp_path: Path) -> None:
    text = """
        S -> X Y [1.0]
        X -> Y [0.5] | Z [0.25] | 'x' [0.25]
        Y -> Z [0.5] | 'y' [0.25] | Z Z [0.25]
        Z -> W [0.5] | 'z' [0.5]
        W -> 'w' [1.0]
    """
    found = rules_of(write(tmp_path, text))
    assert found["X", "'x'"] == 0.25
    assert found["X", "'y'"] == 0.5 * 0.25
    # Through Y and Z, and through Z alone.
    assert found["X", "'z'"] == found["X", "'w'"] == 0.5 * 0.5 * 0.5 + 0.25 * 0.5
    assert found["X", "Z", "Z"] == 0.5 * 0.25
    assert found["Y", "'w'"] == 0.25


def test_unreachable_and_unproductive_symbols_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """S -> A B [0.5] | 'x' [0.5]
        A -> 'a' [1.0]
        B -> A A [0.5] | L A [0.5]
        L -> L A [0.5] | M L [0.5]
        M -> 'm' [1.0]
        U -> V A [0.5] | 'u' [0.5]
        V -> 'v' [1.0]
        N -> 'n' [0.0] | A [1.0]"""
    file = write(tmp_path, text)
    with caplog.at_level(logging.WARNING):
        language = PCFG.from_rules(file, max_length=6)
        again = PCFG.from_rules(file, max_length=6)
    notes = (
        "unreachable from S and left out: N (line 8), U (line 6), V (line 7)",
        "unproductive, for they derive no string of words: L (line 4)",
    )
    assert language.notes == again.notes == notes
    # Once, however often the file is read.
    assert [record.getMessage() for record in caplog.records] == [f"{file}: {note}" for note in notes]
    # What is lost in L is not in the language: of the rest, 'x' has 1/2 and a a a has 1/4.
    ids = torch.tensor([[language.words.index("x")]])
    assert language.log_prob(ids).exp().item() == pytest.approx(2 / 3, abs=1e-15)
    clean = PCFG.from_rules(GRAMMARS / "dogs.pcfg", max_length=4)
    assert clean.notes == ()
    many = "S -> 'x' [1.0]\n" + "\n".join(f"U{k} -> 'u' [1.0]" for k in range(30))
    (note,) = read(write(tmp_path, many)).notes
    assert note.endswith("U8 (line 10), U9 (line 11) and 20 more")
