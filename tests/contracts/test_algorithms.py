"""The contract of algorithms, over the registry."""

from typing import ClassVar

from raysweep.algorithms import AdamWConfig, SAMConfig, SGDConfig
from raysweep.registry import algorithms
from raysweep.testing import AlgorithmContract, UntrainedContract

KINDS = {kind: algorithms.get(kind) for kind in algorithms.kinds()}

#: Another value of every field of our kinds.
OTHERS = {
    **AlgorithmContract.others, "momentum": 0.75, "rho": 0.5, "ascent": "same", "strength": 3.0, "ridge": 0.5,
    "tasks": ["way"], "train": 25, "validation": 17, "examples": 1234, "neurons": 300, "draw": 3,
}  # fmt: skip


class TestTrained(AlgorithmContract):
    """Every kind that trains, and the options that change how a step is made."""

    configs: ClassVar = {kind: cls.example for kind, cls in KINDS.items() if cls.trains} | {
        "averaged": AdamWConfig(lr=1e-2, warmup_steps=10, ema=0.9),
        "cosine": AdamWConfig(lr=1e-2, schedule="cosine", warmup=0.2, warmup_steps=0),
        "momentum": SGDConfig(lr=0.1, warmup_steps=10, momentum=0.9, clip_norm=1.0),
        "sam-same": SAMConfig(lr=1e-2, warmup_steps=10, ascent="same"),
        "averaged-sam": SAMConfig(lr=1e-2, warmup_steps=10, ema=0.9, schedule="linear"),
    }
    others: ClassVar = OTHERS
    in_parts = ("momentum", "adversarial")
    # Muon orthogonalises in bfloat16, in which rounding is a thousand times as large.
    tolerances: ClassVar = {"muon": 2e-2}


class TestUntrained(UntrainedContract):
    """Every kind that does not train."""

    configs: ClassVar = {kind: cls.example for kind, cls in KINDS.items() if not cls.trains}
    others: ClassVar = OTHERS


def test_a_kind_as_it_is_has_its_own_name_for_a_label() -> None:
    for kind in KINDS:
        assert algorithms.decode({"kind": kind}).label == kind
