"""The Fisher trace at a milestone: see `raysweep.flatness.fisher` for what it is.

Sentences, masked positions and test vectors are keyed by the evaluation's seed and the input's number, so all
runs and milestones are measured on common random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Arrays, Evaluation, Metric, Subject
from raysweep.evaluation.sharding import draw_sentences, shard_count, shard_range
from raysweep.evaluation.subject import ModelSubject
from raysweep.flatness.fisher import draw_positions, effective_sample_size, input_traces
from raysweep.flatness.ghost import GhostNorms
from raysweep.flatness.vectors import Vectors
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig


class TraceConfig(Evaluation):
    """Fisher trace over `inputs` sentences with one masked position each, in all and by parameter group.

    `vectors` and `draws` are the test vectors at each input; more inputs serve better than more draws.  The
    published form is `inputs: 10000, vectors: label, draws: 50`.
    """

    kind: Literal["trace"] = "trace"
    needs_parameters: ClassVar[bool] = True

    inputs: int = Field(default=1024, gt=0)
    vectors: Vectors = "rademacher"
    draws: int = Field(default=1, gt=0)
    seed: int = Field(default=0, ge=0)
    #: Inputs a shard.
    shard_size: int = Field(default=512, gt=0)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        with torch.device("meta"):
            module = model.module(language)
        try:
            GhostNorms(module)
        except ConfigError as error:
            reason = str(error).partition(";")[0]
            remedy = "leave the trace out, or give these models a sweep of their own"
            return [("", f"cannot be measured of a model of kind '{model.kind}': {reason}; {remedy}")]
        return []

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the shard's values [n], float64, of each parameter group."""
        if not isinstance(subject, ModelSubject):
            raise ConfigError(f"trace: {type(subject).__name__} has no parameters, so it has no Fisher trace")
        language = subject.language
        numbers = shard_range(self.inputs, self.shard_size, shard)
        ids = draw_sentences(language, numbers, seed=self.seed, purpose="trace")
        traces = input_traces(
            subject.model,
            ids,
            draw_positions(ids, language.pad_id, seed=self.seed, start=numbers.start),
            seed=self.seed,
            start=numbers.start,
            vectors=self.vectors,
            draws=self.draws,
        )
        return {group: values.numpy() for group, values in traces.by_group().items()}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return `trace`, its parts `trace/<group>`, and how evenly the inputs make it up.

        `trace_effective_inputs` is (Σx)²/Σx² of the inputs' values, `trace_largest_share` the share of the
        sum that the largest brings: a standard error is to be trusted where the one is large and the other
        small.
        """
        groups = {group: np.concatenate([shard[group] for shard in shards]) for group in shards[0]}
        whole = np.sum(list(groups.values()), axis=0)
        n = len(whole)
        return [
            Metric.mean("trace", whole, "nats"),
            *(Metric.mean(f"trace/{group}", values, "nats") for group, values in groups.items()),
            Metric.number(
                "trace_effective_inputs", effective_sample_size(torch.from_numpy(whole)), "inputs", n=n
            ),
            Metric.number("trace_largest_share", float(whole.max() / whole.sum()), "fraction", n=n),
        ]
