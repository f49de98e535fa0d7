"""Configuration of a probabilistic context-free grammar: drawn from a seed, or read from a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from raysweep.errors import ConfigError
from raysweep.languages.base import MOST_PROBABILITIES, MOST_WORDS, LanguageConfig

if TYPE_CHECKING:
    from raysweep.languages.pcfg.language import PCFG

#: Charts grow with the square of the length.
LONGEST = 128

#: Most binary rules of a random grammar, symbols of a layer, and symbols of a dense grammar.
MOST_RULES = 1 << 21
MOST_SYMBOLS = 256
MOST_DENSE_SYMBOLS = 128

#: Symbols of a dense grammar that says nothing of them.
DENSE_SYMBOLS = 50


def _tables_fit(symbols: int, vocabulary: int) -> None:
    """Refuse a grammar whose table of words is too large."""
    if symbols * vocabulary > MOST_PROBABILITIES:
        raise ValueError(
            f"{symbols:,} symbols in all and {vocabulary:,} words make a table of {symbols * vocabulary:,} "
            f"probabilities; at most {MOST_PROBABILITIES:,} are supported"
        )


class PCFGConfig(LanguageConfig):
    """A PCFG: `layered` and `dense` draw a random grammar, `file` reads one.

    A dense grammar uses `nonterminals`, `stop`, `vocabulary` and `concentration`; a layered one all but
    `nonterminals` and `path`; a file only `path`.
    """

    kind: Literal["pcfg"] = "pcfg"
    #: `layered` and `dense` draw a random grammar, `file` reads one.
    structure: Literal["layered", "dense", "file"] = "layered"
    #: Decides the drawn grammar.
    seed: int = Field(default=0, ge=0)
    #: Number of words of a random grammar; a file has its own words.
    vocabulary: int = Field(default=200, ge=2, le=MOST_WORDS)
    #: Symbols in each layer of a layered grammar.
    symbols: int = Field(default=10, ge=1, le=MOST_SYMBOLS)
    #: Layers below the roots; sentences have at most 2^layers words.
    layers: int = Field(default=4, ge=1)
    #: Start symbols, which are the labels of task A.
    roots: int = Field(default=9, ge=1)
    #: Binary rules of each symbol in the layers before the last.
    rules: int = Field(default=20, ge=1)
    #: Probability of ending in a word: before the last layer (None: 0.18), in a dense grammar (None: 0.5).
    stop: float | None = Field(default=None, ge=0.0, lt=1.0)
    #: Words of each symbol of the last layer.
    words: int = Field(default=100, ge=1)
    #: Parameter of the symmetric Dirichlet distributions of rules and words; small values give peaked ones.
    concentration: float = Field(default=1.0, ge=0.05, le=1000.0)
    #: Symbols of a dense grammar (None: 50).
    nonterminals: int | None = Field(default=None, ge=1, le=MOST_DENSE_SYMBOLS)
    #: File of rules, in NLTK's notation or as a table `LHS RHS1 [RHS2] probability`.
    path: str | None = None
    #: Most words of a sentence; None: those of the longest sentence, at most 32 where the grammar is not
    #: layered.
    max_length: int | None = Field(default=None, ge=1, le=LONGEST)
    #: Words of the prefixes labelled in tasks B and C; None: a half and a quarter of the maximal length.
    spans: tuple[int, int] | None = None
    #: Truth of the tasks: `inside` argmax_A Pr(prefix | A), `prefix` argmax_A Pr(A | prefix), `posterior` the
    #: most probable symbol of the prefix given the sentence, `tree` the sampled tree's symbol.
    label: Literal["inside", "prefix", "posterior", "tree"] = "inside"
    #: Symbols of a file that compete in tasks B and C of `label: inside`: those that the start symbol
    #: reaches, or all, though no sentence contains the others.
    candidates: Literal["reached", "all"] = "reached"
    #: Fewest words of a sentence of the tasks.
    task_words: int = Field(default=1, ge=1)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(seed=1, roots=2, layers=2, symbols=3, rules=3, words=4, vocabulary=6, stop=0.4)

    @field_validator("layers")
    @classmethod
    def _layers_fit(cls, layers: int, info: ValidationInfo) -> int:
        if info.data.get("structure") == "layered" and layers >= LONGEST.bit_length():
            words = 2**layers if layers < 64 else f"2^{layers}"
            raise ValueError(
                f"{layers} layers make sentences of {words} words; at most {LONGEST} are supported"
            )
        return layers

    @field_validator("roots")
    @classmethod
    def _roots_fit(cls, roots: int, info: ValidationInfo) -> int:
        symbols = info.data.get("symbols")
        if info.data.get("structure") != "layered" or symbols is None:
            return roots
        if roots > symbols**2:
            raise ValueError(f"{roots} roots, but {symbols} symbols make only {symbols**2} different pairs")
        if 2 * roots < symbols:
            raise ValueError(
                f"{roots} roots reach at most {2 * roots} of the {symbols} symbols of the first layer; "
                f"use at least {(symbols + 1) // 2} roots or fewer symbols"
            )
        layers, vocabulary = info.data.get("layers"), info.data.get("vocabulary")
        if layers is not None and vocabulary is not None:
            _tables_fit(roots + layers * symbols, vocabulary)
        return roots

    @field_validator("rules")
    @classmethod
    def _rules_fit(cls, rules: int, info: ValidationInfo) -> int:
        symbols, layers = info.data.get("symbols"), info.data.get("layers")
        applies = info.data.get("structure") == "layered" and layers != 1
        if applies and symbols is not None and rules > symbols**2:
            raise ValueError(f"{rules} rules a symbol, but {symbols} symbols make only {symbols**2} pairs")
        if applies and symbols is not None and layers is not None:
            many = (layers - 1) * symbols * rules
            if many > MOST_RULES:
                raise ValueError(
                    f"{rules} rules of each of {symbols} symbols in {layers - 1} layers are {many:,}; "
                    f"at most {MOST_RULES:,} are supported"
                )
        return rules

    @field_validator("stop")
    @classmethod
    def _stop_fits(cls, stop: float | None, info: ValidationInfo) -> float | None:
        if stop == 0.0 and info.data.get("structure") == "dense":
            raise ValueError("0 leaves a dense grammar without words")
        return stop

    @field_validator("words")
    @classmethod
    def _words_fit(cls, words: int, info: ValidationInfo) -> int:
        symbols, vocabulary = info.data.get("symbols"), info.data.get("vocabulary")
        if info.data.get("structure") != "layered" or symbols is None or vocabulary is None:
            return words
        if words > vocabulary:
            raise ValueError(f"{words} words a symbol, but the vocabulary has only {vocabulary}")
        if symbols * words < vocabulary:
            raise ValueError(
                f"{symbols} symbols of {words} words cover at most {symbols * words} of the vocabulary's "
                f"{vocabulary}; use at least {-(-vocabulary // symbols)} words"
            )
        return words

    @field_validator("nonterminals")
    @classmethod
    def _nonterminals_fit(cls, nonterminals: int | None, info: ValidationInfo) -> int | None:
        structure = info.data.get("structure")
        if nonterminals is not None and structure in ("layered", "file"):
            raise ValueError(f"belongs to structure 'dense', not '{structure}'; remove it")
        vocabulary = info.data.get("vocabulary")
        if structure == "dense" and vocabulary is not None:
            _tables_fit(nonterminals or DENSE_SYMBOLS, vocabulary)
        return nonterminals

    @field_validator("path")
    @classmethod
    def _path_fits(cls, path: str | None, info: ValidationInfo) -> str | None:
        structure = info.data.get("structure")
        if structure == "file":
            if path is None:
                raise ValueError("missing; structure 'file' reads its rules from there")
            if not os.path.isfile(path):
                raise ValueError(f"there is no file '{path}'")
        elif path is not None and structure is not None:
            raise ValueError(f"belongs to structure 'file', not '{structure}'; remove it or change structure")
        return path

    @field_validator("max_length")
    @classmethod
    def _length_fits(cls, max_length: int | None, info: ValidationInfo) -> int | None:
        if max_length == 1 and info.data.get("structure") == "layered":
            raise ValueError("the shortest sentence of a layered grammar has 2 words")
        return max_length

    @field_validator("spans")
    @classmethod
    def _spans_fit(cls, spans: tuple[int, int] | None, info: ValidationInfo) -> tuple[int, int] | None:
        longest, layers = info.data.get("max_length"), info.data.get("layers")
        if longest is None and info.data.get("structure") == "layered" and layers is not None:
            longest = 2**layers
        for span in spans or ():
            if span < 1 or (longest is not None and span > longest):
                raise ValueError(f"a prefix of {span} words is outside 1 .. {longest or 'max_length'}")
        return spans

    @field_validator("candidates")
    @classmethod
    def _candidates_fit(cls, candidates: str, info: ValidationInfo) -> str:
        label, structure = info.data.get("label"), info.data.get("structure")
        if candidates == "all" and label not in (None, "inside"):
            raise ValueError(f"'all' belongs to label 'inside', not '{label}'; remove it or change label")
        if candidates == "all" and structure not in (None, "file"):
            raise ValueError(
                f"'all' belongs to structure 'file'; every symbol of a {structure} one is reached"
            )
        return candidates

    @field_validator("task_words")
    @classmethod
    def _task_words_fit(cls, task_words: int, info: ValidationInfo) -> int:
        longest, layers = info.data.get("max_length"), info.data.get("layers")
        if longest is None and info.data.get("structure") == "layered" and layers is not None:
            longest = 2**layers
        if longest is not None and task_words > longest:
            raise ValueError(f"no sentence has {task_words} words; the longest has {longest}")
        return task_words

    def build(self) -> PCFG:
        """Draw or read the grammar and make the language.

        Raises `DataError` naming file and line for a file of rules that cannot be used.
        """
        from raysweep.languages.pcfg import generate, rules
        from raysweep.languages.pcfg.language import PCFG

        common: dict[str, Any] = {"vocabulary": self.vocabulary, "concentration": self.concentration}
        longest = self.max_length
        if self.structure == "layered":
            grammar = generate.layered(
                self.seed,
                roots=self.roots,
                layers=self.layers,
                symbols=self.symbols,
                rules=self.rules,
                stop=0.18 if self.stop is None else self.stop,
                words=self.words,
                **common,
            )
            longest = longest or 2**self.layers
        elif self.structure == "dense":
            grammar = generate.dense(
                self.seed,
                nonterminals=self.nonterminals or DENSE_SYMBOLS,
                stop=0.5 if self.stop is None else self.stop,
                **common,
            )
            longest = longest or 32
        else:
            if self.path is None:
                raise ConfigError("path: missing; structure 'file' reads its rules from there")
            grammar = rules.read(self.path, unreached=self.candidates == "all")
            longest = longest or min(grammar.longest() or 32, 32)
        return PCFG(
            grammar,
            max_length=longest,
            label=self.label,
            spans=self.spans,
            task_words=self.task_words,
        )
