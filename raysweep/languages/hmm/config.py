"""The configuration of a hidden Markov model, and its tables drawn from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from raysweep.languages.base import MOST_PROBABILITIES, MOST_WORDS, LanguageConfig
from raysweep.languages.draw import dirichlet
from raysweep.seeding import derive

if TYPE_CHECKING:
    from raysweep.languages.hmm.language import HMM


#: The settings of a preset, where a language does not say otherwise.
PRESETS: dict[str, dict[str, Any]] = {"paper": {"blocks": 4, "concentration": 0.276}}


class HMMConfig(LanguageConfig):
    """A random block-diagonal hidden Markov model; all sentences have `length` words.

    Sizes, length and tasks are by default those of Liu et al. (ICML 2023, appendix A.1).  They leave
    open how many blocks there are and how rows are drawn; `preset: paper` chooses both so that the entropy is
    the least loss that they give, 3.758 nats.  The ten blocks of the default cannot have it: a visible word
    gives the block away, so the hidden word is one of 20, and ln 20 is 2.996.
    """

    kind: Literal["hmm"] = "hmm"
    #: `paper` chooses blocks and rows so that the entropy is the least loss that the paper gives.
    preset: Literal["paper"] | None = None
    #: Decides the drawn probabilities.
    seed: int = Field(default=0, ge=0)
    #: Number of hidden states.
    states: int = Field(default=100, ge=1)
    #: Number of words.
    vocabulary: int = Field(default=200, ge=2, le=MOST_WORDS)
    #: Words of every sentence.
    length: int = Field(default=16, ge=1, le=1024)
    #: Number of diagonal blocks; 1 is a dense model.
    blocks: int = Field(default=10, ge=1)
    #: Parameter of the symmetric Dirichlet distribution of every row; small values give peaked rows.
    concentration: float = Field(default=1.0, ge=0.05, le=1000.0)
    #: Positions, counted from 1, whose hidden states are downstream tasks.
    tasks: tuple[int, ...] = (6, 10)
    #: `state`: the state that generated the word; `posterior`: the most probable state given the sentence.
    label: Literal["state", "posterior"] = "state"

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(seed=1, states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4))

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, data: Any) -> Any:
        found = PRESETS.get(str(data.get("preset")), {}) if isinstance(data, dict) else {}
        return {**found, **data} if found else data

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_may_be_a_list(cls, tasks: object) -> object:
        # After a "before" validator, pydantic treats a list from JSON as a Python list.
        return tuple(tasks) if isinstance(tasks, list) else tasks

    @field_validator("vocabulary")
    @classmethod
    def _tables_fit(cls, vocabulary: int, info: ValidationInfo) -> int:
        states = info.data.get("states", 0)
        size = states * (states + vocabulary)
        if size > MOST_PROBABILITIES:
            raise ValueError(
                f"{states:,} states and {vocabulary:,} words make tables of {size:,} probabilities; at most "
                f"{MOST_PROBABILITIES:,} are supported"
            )
        return vocabulary

    @field_validator("blocks")
    @classmethod
    def _blocks_fit(cls, blocks: int, info: ValidationInfo) -> int:
        for name in ("states", "vocabulary"):
            size = info.data.get(name)
            if size is not None and blocks > size:
                raise ValueError(f"{blocks} blocks need at least as many {name}, not {size}")
        return blocks

    @field_validator("tasks")
    @classmethod
    def _tasks_fit(cls, tasks: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        length = info.data.get("length")
        for position in tasks:
            if position < 1 or (length is not None and position > length):
                raise ValueError(f"position {position} is outside 1 .. {length}, the length of a sentence")
        if len(set(tasks)) != len(tasks):
            raise ValueError(f"a position is named twice in {list(tasks)}")
        return tasks

    def build(self) -> HMM:
        """Draw the tables and make the language."""
        from raysweep.languages.hmm.language import HMM

        block_of = np.arange(self.states) * self.blocks // self.states
        block_of_word = np.arange(self.vocabulary) * self.blocks // self.vocabulary

        def rows(purpose: str, column_block: np.ndarray) -> np.ndarray:
            table = np.zeros((self.states, len(column_block)))
            for block in range(self.blocks):
                inside, columns = np.nonzero(block_of == block)[0], np.nonzero(column_block == block)[0]
                seed = derive(self.seed, purpose, block)
                table[np.ix_(inside, columns)] = dirichlet(
                    seed, "row", len(inside), len(columns), self.concentration
                )
            return table

        return HMM(
            initial=dirichlet(self.seed, "initial", 1, self.states, self.concentration)[0],
            transition=rows("transition", block_of),
            emission=rows("emission", block_of_word),
            length=self.length,
            tasks=self.tasks,
            label=self.label,
        )
