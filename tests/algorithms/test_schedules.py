"""Warm-up and schedules against their equations, and what they say of a run's length."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from raysweep.algorithms import AdamWConfig, SGDConfig
from raysweep.registry import algorithms


def rates(steps: int, **options: Any) -> list[float]:
    config = AdamWConfig(lr=2.0, **options)
    return [config.learning_rate(step, steps) for step in range(1, steps + 1)]


def test_linear_and_cosine_fall_to_nothing_behind_the_last_step() -> None:
    assert rates(6, warmup_steps=2, schedule="linear") == pytest.approx([1.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    cosine = [1.0, 2.0, *(1 + math.cos(math.pi * k / 4) for k in range(4))]
    assert rates(6, warmup_steps=2, schedule="cosine") == pytest.approx(cosine)
    assert rates(4, warmup_steps=0, schedule="linear") == pytest.approx([2.0, 1.5, 1.0, 0.5])
    # A run that ends in its warm-up.
    assert rates(3, warmup_steps=4, schedule="cosine") == pytest.approx([0.5, 1.0, 1.5])


def test_a_warm_up_may_be_a_proportion() -> None:
    assert rates(10, warmup=0.4) == pytest.approx([0.5, 1.0, 1.5, *[2.0] * 7])
    assert rates(5, warmup=0.4) == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0])


def test_sgd_warms_up_over_twelve_per_cent_to_a_constant_rate() -> None:
    config = SGDConfig()
    found = [config.learning_rate(step, 1000) for step in (1, 60, 120, 121, 1000)]
    assert found == pytest.approx([1e-3 / 120, 5e-4, 1e-3, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, False), ({"warmup_steps": 3}, False), ({"warmup": 0.1}, True), ({"schedule": "linear"}, True),
     ({"schedule": "cosine"}, True)],
)  # fmt: skip
def test_what_depends_on_the_number_of_steps_says_so(options: dict[str, Any], expected: bool) -> None:
    config = AdamWConfig(**options)
    assert config.depends_on_steps is expected
    same = [config.learning_rate(s, 2000) == config.learning_rate(s, 4000) for s in range(1, 2001)]
    assert all(same) is not expected


def test_giving_one_warm_up_replaces_the_default_of_the_other() -> None:
    adamw, sgd = AdamWConfig(warmup=0.06), SGDConfig(warmup_steps=5)
    assert (adamw.warmup_steps, sgd.warmup) == (0, None)
    assert algorithms.decode({"kind": "sgd", "warmup": None}).learning_rate(1, 100) == 1e-3
    with pytest.raises(ValidationError, match=r"0\.06 of all steps and warmup_steps 20 are both given"):
        AdamWConfig(warmup=0.06, warmup_steps=20)


def test_every_option_has_a_part_in_the_identity() -> None:
    content = AdamWConfig().content()
    assert content == {
        "kind": "adamw", "lr": 1e-3, "warmup_steps": 1000, "warmup": None, "schedule": "constant",
        "betas": [0.9, 0.98], "eps": 1e-6, "weight_decay": 0.01, "clip_norm": None, "ema": None,
    }  # fmt: skip
    assert AdamWConfig(ema=0.9).content() == content | {"ema": 0.9}
    assert AdamWConfig(warmup=0.5).content() == content | {"warmup_steps": 0, "warmup": 0.5}
    assert AdamWConfig(schedule="cosine").content() == content | {"schedule": "cosine"}
