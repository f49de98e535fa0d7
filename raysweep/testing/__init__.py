"""Contracts: the tests that every language, model, algorithm and evaluation passes, for plug-ins as for us.

A kind is one file and one line of registration.  The file holds a configuration and the thing that it
configures; `example` of the configuration gives a small instance for tests.  This is a whole evaluation:

    # my_package/sharpest.py
    from raysweep.evaluation import Evaluation, Quantity

    SHARPEST = Quantity(
        name="sharpest", heading="largest probability", short="p_max", unit="probability",
        kind="diagnostic", better="more", live=True, report=True,
    )

    class SharpestConfig(Evaluation):
        # The probability of the most probable word at the first position.

        kind: Literal["sharpest"] = "sharpest"
        sentences: int = Field(default=4096, gt=1)
        seed: int = Field(default=0, ge=0)

        @classmethod
        def example(cls, folder: Path) -> Self:
            return cls(sentences=40)

        def shards(self) -> int:
            return 1

        def measure(self, subject, shard, reference=None):
            numbers = shard_range(self.sentences, self.sentences, shard)
            ids = draw_sentences(subject.language, numbers, seed=self.seed, purpose="sharpest")
            log_probs = subject.log_probs(ids, torch.zeros(len(ids), dtype=torch.int64))
            return {"largest": log_probs.exp().amax(dim=1).cpu().numpy()}

        def combine(self, shards):
            return [SHARPEST.mean(np.concatenate([shard["largest"] for shard in shards]))]

The line is an entry point in the package's pyproject.toml.  Every process that has the package installed
knows the kind then, Ray's workers included:

    [project.entry-points."raysweep.evaluation"]
    sharpest = "my_package.sharpest:SharpestConfig"

A sweep file may now say `evaluate: {sharpest: {}}`.  The description `Quantity` is all that the live view,
the tidy table, MLflow and the report need: a column of the live view is `live=True`.

These are the tests:

    # tests/test_sharpest.py
    from my_package.sharpest import SharpestConfig
    from raysweep.testing import EvaluationContract

    class TestSharpest(EvaluationContract):
        configs = [SharpestConfig.example, SharpestConfig(sentences=100, seed=1)]

An entry of `configs` is a configuration, or a function of a folder that makes one, such as `example`; the
keys of a mapping name the tests.

    family       base classes                          group of entry points   contract
    language     LanguageConfig, Language              raysweep.language       LanguageContract
    model        ModelConfig, MaskedLM                 raysweep.model          ModelContract
    algorithm    AlgorithmConfig, TrainedConfig        raysweep.algorithm      AlgorithmContract
    evaluation   Evaluation                            raysweep.evaluation     EvaluationContract

`LanguageContract` is for languages that know their exact conditionals, `TextContract` for others.
`AlgorithmContract` is for algorithms that train, `UntrainedContract` for those that are evaluated as they
are, such as the look-up table.

The contracts need pytest (`pip install 'raysweep[test]'`); nothing else of raysweep imports this package.
"""

import pytest

for _name in ("algorithm", "contract", "evaluation", "language", "model"):
    pytest.register_assert_rewrite(f"raysweep.testing.{_name}")

from raysweep.testing.algorithm import AlgorithmContract, UntrainedContract  # noqa: E402
from raysweep.testing.evaluation import EvaluationContract  # noqa: E402
from raysweep.testing.language import LanguageContract, TextContract  # noqa: E402
from raysweep.testing.model import ModelContract  # noqa: E402

__all__ = [
    "AlgorithmContract",
    "EvaluationContract",
    "LanguageContract",
    "ModelContract",
    "TextContract",
    "UntrainedContract",
]
