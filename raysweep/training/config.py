"""The configuration of pre-training: steps, batches, masks, precision, and which states are kept."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from raysweep.languages.base import Language
from raysweep.models.precision import Precision
from raysweep.registry import Config

#: Most updates of a run: at a thousand a second, they take three years.
MOST_STEPS = 100_000_000_000
#: Most bytes of the word ids of an update; its activations are hundreds of times as large.
MOST_BYTES = 2**40
#: Bytes of the id of a word.
_OF_A_WORD = 8


def check_mask(value: object) -> object:
    """Return a valid `mask`, "one" or a rate in (0, 1); raise `ValueError` for anything else."""
    if value == "one" or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError(f"{value!r} is neither 'one' nor a rate between 0 and 1, e.g. 0.15")


class PretrainConfig(Config):
    """Settings of masked-language-model pre-training.

    Training makes `steps` updates on batches of `batch_size` sentences.  These are fresh for ever, or with
    `sentences` come in epochs over a finite set of so many (`raysweep.languages.training_set`), in each epoch
    with other masks; a corpus without it runs through all of its rows.  The state after each of
    `milestones` is kept and evaluated; by default after the last step alone.  0 is the state before the first
    step: the untrained model, or the one that the run starts from.  `mask` is "one" (one uniformly
    drawn position a sentence) or a rate r in (0, 1): max(1, round(r · length)) distinct positions a sentence.
    `replace` says what the model sees instead of a masked word: the mask token (`mask`), or as in BERT
    (`bert`) the mask token in 80 %, a uniformly drawn word in 10 % and the word itself in 10 % of the cases.
    Besides the milestones, a state to resume from is kept every `checkpoint_every` steps (None: at milestones
    only).  Matrix products run in `precision`; `auto` is bfloat16 where hardware and size make that faster,
    else float32.  A worker holds the activations of at most `micro_batch` sentences at once.  With None it
    holds its whole part of a batch; a single worker whose GPU runs out of memory takes as many as fit.
    """

    #: Number of updates, at most 100,000,000,000: at a thousand a second, these take three years.
    steps: Annotated[int, Field(gt=0, json_schema_extra={"maximum": MOST_STEPS})]
    #: Sentences of an update, over all workers: at most 1 TiB of word ids, of 8 bytes each.
    batch_size: Annotated[int, Field(gt=0)]
    sentences: Annotated[int, Field(gt=0)] | None = None
    milestones: tuple[int, ...] = ()
    #: `one` uniformly drawn position a sentence, or a rate r in (0, 1): max(1, round(r · length)) positions.
    mask: Literal["one"] | float = "one"
    replace: Literal["mask", "bert"] = "mask"
    checkpoint_every: Annotated[int, Field(gt=0)] | None = None
    precision: Precision = "auto"
    micro_batch: Annotated[int, Field(gt=0)] | None = None

    def content(self) -> dict[str, Any]:
        """Return the plain data that is part of a run's identity: every field.

        `sentences` is left out where it is None, so runs from before there was such a field keep theirs.
        """
        return {key: value for key, value in self.encode().items() if key != "sentences" or value is not None}

    def problems(self, language: Language) -> list[tuple[str, str]]:
        """Return (field, message) for every value that does not fit the language, as far as that is known."""
        found = []
        sentence = _OF_A_WORD * language.max_length
        if self.batch_size * sentence > MOST_BYTES:
            message = (
                f"{self.batch_size:,} sentences of length {language.max_length} take "
                f"{self.batch_size * sentence / 2**40:,.1f} TiB for word ids alone; "
                f"use at most {MOST_BYTES // sentence:,}"
            )
            found.append(("batch_size", message))
        there = language.distinct
        if self.sentences is not None and there is not None and self.sentences > there:
            message = (
                f"{self.sentences:,} are asked for, the language has {there:,} for training; ask for no more"
            )
            found.append(("sentences", message))
        return found

    def sharing_problems(
        self, workers: int, *, halves: bool = False, sharded: bool = False
    ) -> list[tuple[str, str]]:
        """Return (field, message) for every value with which some of the `workers` of a run lack sentences.

        With `halves`, an algorithm needs sentences of either half of a batch on each worker.  With `sharded`,
        workers share weights, and so have equally many parts of a batch.
        """
        each = 2 if halves else 1
        if self.batch_size < each * workers:
            what = "one of either half, as the algorithm needs" if halves else "one"
            message = (
                f"{self.batch_size} sentences do not give each of {workers} workers {what}; "
                f"use at least {each * workers}, or fewer workers"
            )
            return [("batch_size", message)]
        least = self.batch_size // workers // each
        if sharded and self.micro_batch is not None and self.parts(workers, halves=halves) > least:
            message = (
                f"{self.micro_batch} makes more parts than some of the {workers} workers have sentences; "
                f"use at least 2, or a batch_size that {each * workers} divides"
            )
            return [("micro_batch", message)]
        return []

    def parts(self, workers: int, *, halves: bool = False) -> int:
        """Return the parts of a batch, or of its half: as many as the worker with most sentences needs."""
        most = -(-self.batch_size // workers)
        most = -(-most // 2) if halves else most
        return -(-most // (self.micro_batch or self.batch_size))

    @field_validator("steps")
    @classmethod
    def _a_run_ends(cls, steps: int) -> int:
        if steps <= MOST_STEPS:
            return steps
        years = steps / (1000 * 3600 * 24 * 365)
        raise ValueError(
            f"{steps:,} steps take {years:,.0f} years at a thousand a second; use at most {MOST_STEPS:,}"
        )

    @field_validator("sentences")
    @classmethod
    def _an_epoch_fills_a_batch(cls, sentences: int | None, info: ValidationInfo) -> int | None:
        batch_size = info.data.get("batch_size")
        if sentences is None or batch_size is None or sentences >= batch_size:
            return sentences
        raise ValueError(
            f"{sentences} sentences do not fill a batch of {batch_size}; "
            f"use at least {batch_size}, or lower batch_size to {sentences}"
        )

    @field_validator("milestones", mode="before", json_schema_input_type=tuple[int, ...] | None)
    @classmethod
    def _none_is_the_default(cls, value: object) -> object:
        # After a "before" validator pydantic treats a JSON list as a Python list, which strict mode refuses.
        return tuple(value or ()) if isinstance(value, list | None) else value

    @field_validator("milestones")
    @classmethod
    def _milestones_lead_to_the_end(
        cls, milestones: tuple[int, ...], info: ValidationInfo
    ) -> tuple[int, ...]:
        steps = info.data.get("steps")
        if steps is None:  # already reported as wrong
            return milestones
        if not milestones:
            return (steps,)
        text = list(milestones)
        if milestones[0] < 0 or any(a >= b for a, b in pairwise(milestones)):
            raise ValueError(
                f"{text}: must be ascending from 0 or more, each step once; "
                f"write {sorted({m for m in text if m >= 0})}"
            )
        if milestones[-1] > steps:
            raise ValueError(
                f"{milestones[-1]} lies past the last step, {steps}; "
                f"drop it, or raise steps to {milestones[-1]}"
            )
        if milestones[-1] < steps:
            raise ValueError(
                f"{text}: nothing would be kept of the training after step {milestones[-1]}; "
                f"end with {steps}, or lower steps to {milestones[-1]}"
            )
        return milestones

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)
