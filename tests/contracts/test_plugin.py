"""The contracts as the author of a plug-in uses them."""

from typing import ClassVar

from helpers.my_kinds.bag import BagConfig
from helpers.my_kinds.dice import DiceConfig
from helpers.my_kinds.sharpest import SharpestConfig
from helpers.my_kinds.sign import SignConfig
from raysweep.testing import AlgorithmContract, EvaluationContract, LanguageContract, ModelContract


class TestDice(LanguageContract):
    configs = (DiceConfig.example, DiceConfig(sides=2, length=5))


class TestBag(ModelContract):
    configs = (BagConfig.example,)


class TestSign(AlgorithmContract):
    configs = (SignConfig.example,)
    others: ClassVar = {**AlgorithmContract.others, "beta": 0.5}
    # A sign turns rounding into a step.
    tolerances: ClassVar = {"SignConfig0": 0.2}


class TestSharpest(EvaluationContract):
    configs = (SharpestConfig.example, SharpestConfig(sentences=100, seed=1))
