"""Reports of the theory's evaluations beside the values they should have."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysweep.algorithms.dyck import DyckRandomFeaturesConfig, DyckTwoNeuronsConfig
from raysweep.algorithms.lookup_table import LookupTableConfig
from raysweep.errors import ConfigError
from raysweep.evaluation import ModelSubject
from raysweep.evaluation.bartlett import BartlettConfig
from raysweep.evaluation.descent import DescentConfig
from raysweep.evaluation.dyck import DyckConfig
from raysweep.evaluation.hessian import HessianConfig
from raysweep.languages.dyck import Dyck
from raysweep.languages.hmm import HMM
from raysweep.models.dyck import expected_accuracy
from raysweep.models.encoder import EncoderConfig
from raysweep.models.lstm import LSTMConfig
from raysweep.sweep.load import load_sweep


def test_bartlett_and_hessian_agree(run, make_subject, hmm) -> None:
    """The Hessian's trace from directions alone, and from ghost norms and directions."""
    subject = make_subject(hmm)
    found = run(BartlettConfig(inputs=512), subject)
    other = run(HessianConfig(inputs=512), subject)
    for name, its in (("hessian", "trace"), ("gauss_newton", "gauss_newton"), ("residual", "residual")):
        a, b = found[f"bartlett/{name}"], other[f"hessian/{its}"]
        assert abs(a.value - b.value) < 4 * math.hypot(a.standard_error, b.standard_error)
    # Far from its language the identity fails.
    difference = found["bartlett/difference"]
    assert abs(difference.value) > 4 * difference.standard_error
    assert found["bartlett/excess_loss"].value > 0.1
    ratio = found["bartlett/ratio"]
    assert ratio.value == pytest.approx(
        found["bartlett/covariance"].value / found["bartlett/hessian"].value, rel=1e-12
    )
    assert 0 < ratio.standard_error < abs(ratio.value)


def test_bartlett_pairs_what_it_compares() -> None:
    generator = np.random.default_rng(0)
    trace = generator.exponential(5.0, 160)
    shard = {
        "second_moment": trace + generator.normal(0, 0.01, 160),
        "gauss_newton": trace - 1,
        "residual": np.ones(160),
        "squared_gradient": np.zeros(10),
        "loss": np.zeros(160),
    }
    found = {metric.name: metric for metric in BartlettConfig().combine([shard])}
    assert found["bartlett/covariance"].standard_error > 0.2
    assert found["bartlett/difference"].standard_error < 0.005
    assert found["bartlett/ratio"].value == pytest.approx(1, abs=0.002)
    assert found["bartlett/ratio"].standard_error < 0.002


def test_descent_reports_what_it_ran(run) -> None:
    language = HMM.random(states=3, vocabulary=2, length=2, blocks=1, tasks=(1,))
    model = EncoderConfig(shape="4/1/1/8", layer_norm_eps=1.0).build(language, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    evaluation = DescentConfig(lrs=(0.1,), batches=(16, 32), time=0.2, points=2, replicates=4)
    found = run(evaluation, ModelSubject(language, model))
    start = found["descent/start"].value
    assert found["descent/rank"].value == 4
    assert found["descent/largest_eigenvalue"].value < start
    for batch in (16, 32):
        assert found[f"descent/predicted/batch-{batch}/time-0"].value == start
        at_the_start = found[f"descent/observed/lr-0.1/batch-{batch}/time-0"]
        assert (at_the_start.value, at_the_start.standard_error) == (pytest.approx(start, rel=1e-9), 0.0)
    # Time over batch size is all that the ODE knows.
    half, whole = (f"descent/predicted/batch-{b}/time-{t}" for b, t in ((16, "0.1"), (32, "0.2")))
    assert found[half].value == pytest.approx(found[whole].value, rel=1e-9)
    falls = start - found["descent/observed/lr-0.1/batch-16/time-0.2"].value
    predicted = start - found["descent/predicted/batch-16/time-0.2"].value
    assert found["descent/ratio/lr-0.1/batch-16"].value == pytest.approx(falls / predicted, rel=1e-9)
    assert all(metric.n == 4 for name, metric in found.items() if "observed" in name)


def descent_shard(evaluation: DescentConfig, fall: dict[int, float]) -> dict[str, np.ndarray]:
    """A shard of traces that begin at 5 and fall, up to noise, by what is predicted of each batch size."""
    generator, times = np.random.default_rng(0), np.linspace(0, 1, evaluation.points + 1)
    n = evaluation.replicates
    shard = {"spectrum": np.tile([5.0, 4.0, 3.0, 0.1], (n, 1))}
    for batch in evaluation.batches:
        predicted = 5.0 - fall[batch] * times
        shard[f"predicted-{batch}"] = np.tile(predicted, (n, 1))
        for lr in evaluation.lrs:
            noise = generator.normal(0, 0.01, (n, len(times))) * times
            shard[f"trace-{lr!r}-{batch}"] = predicted + noise
            shard[f"loss-{lr!r}-{batch}"] = np.full((n, len(times)), 1e-3)
    return shard


@pytest.mark.parametrize("none", [0.0, 1e-6, 0.005])
def test_no_ratio_to_a_fall_that_is_not_predicted(none: float, caplog: pytest.LogCaptureFixture) -> None:
    evaluation = DescentConfig(batches=(8, 32))
    shard = descent_shard(evaluation, {8: 1.0, 32: none})
    found = {metric.name: metric for metric in evaluation.combine([shard])}
    assert found["descent/ratio/lr-0.01/batch-8"].value == pytest.approx(1, abs=0.02)
    assert not [name for name in found if name.startswith("descent/ratio/") and "batch-32" in name]
    # All else is there.
    assert found["descent/observed/lr-0.01/batch-32/time-1"].n == 16
    [said] = evaluation.notes([shard]).values()
    assert "no ratio for batches of 32: in a time of 1" in said
    assert "longer time" in said
    assert caplog.messages == [said]


def test_all_ratios_that_there_are_need_no_note() -> None:
    evaluation = DescentConfig()
    shard = descent_shard(evaluation, {8: 1.0, 32: 0.25})
    assert sum(metric.name.startswith("descent/ratio/") for metric in evaluation.combine([shard])) == 4
    assert evaluation.notes([shard]) == {}


def test_descent_is_set_up_for_what_its_sweep_trains() -> None:
    """`raysweep evaluate -e descent` does on such a model what the sweep does."""
    sweep = load_sweep(Path(__file__).parents[2] / "sweeps" / "theory_descent.yaml")
    assert sweep.runs[0].evaluations["descent"] == DescentConfig()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lrs": [0.1], "time": 0.1, "points": 20}, "0.5 steps from one point to the next"),
        ({"lrs": [0.1, 0.1]}, "holds a value twice"),
        ({"batches": []}, "at least 1"),
    ],
)
def test_descents_that_make_no_sense_are_refused(settings, message) -> None:
    with pytest.raises(ValidationError, match=message):
        DescentConfig.decode({"kind": "descent", **settings})


def test_descent_says_what_it_cannot_measure(hmm) -> None:
    language = HMM.random(states=3, vocabulary=2, length=2, blocks=1, tasks=(1,))
    impossible = HMM.random(states=2, vocabulary=2, length=2, blocks=2, tasks=(1,))
    assert "4096 strings" in DescentConfig().problems(hmm)[0][1]
    assert "probability zero in their place" in DescentConfig().problems(impossible)[0][1]
    assert DescentConfig().problems(language) == []
    assert DescentConfig().model_problems(EncoderConfig(shape="4/1/1/8"), language) == []
    assert "recurrent" in DescentConfig().model_problems(LSTMConfig(shape="4/1"), language)[0][1]


def test_two_neurons_transfer_as_the_closed_form_says(run) -> None:
    language = Dyck(length=6)
    sizes = (0, 1, 2, 4, 8)
    found = run(DyckConfig(examples=sizes, sets=400), DyckTwoNeuronsConfig().subject(language))
    assert found["dyck/loss"].value < 1e-24
    assert found["dyck/trace"].value == pytest.approx(math.sqrt(4 / 6), abs=1e-6)
    assert found["dyck/trace_over_bound"].value == pytest.approx(1, abs=1e-6)
    nothing = math.comb(6, 3) / 2**6
    assert found["dyck/accuracy/examples-0"].value == 1.0
    for n in sizes[1:]:
        accuracy = found[f"dyck/accuracy/examples-{n}"]
        assert expected_accuracy(6, n) == pytest.approx(
            nothing + (1 - nothing) * (1 - (1 - (1 - nothing) / 2) ** n), rel=1e-12
        )
        assert abs(accuracy.value - expected_accuracy(6, n)) < 4 * accuracy.standard_error


def test_random_features_need_more_examples(run) -> None:
    language, evaluation = Dyck(length=6), DyckConfig(examples=(0, 4, 8, 64), sets=30)
    two = run(evaluation, DyckTwoNeuronsConfig(neurons=240).subject(language))
    random = run(evaluation, DyckRandomFeaturesConfig().subject(language))
    assert random["dyck/loss"].value < 1e-20
    assert random["dyck/bound"].value == two["dyck/bound"].value
    assert random["dyck/trace"].value > 10 * two["dyck/trace"].value
    for n in (4, 8):
        name = f"dyck/accuracy/examples-{n}"
        gap = two[name].value - random[name].value
        assert gap > 5 * math.hypot(two[name].standard_error, random[name].standard_error)
    assert random["dyck/accuracy/examples-64"].value == pytest.approx(1, abs=0.01)


def test_solutions_are_measured_by_their_own_evaluation(hmm) -> None:
    solution = DyckRandomFeaturesConfig()
    assert DyckConfig().applies_to(solution)
    assert not DyckConfig().applies_to(LookupTableConfig())
    assert not BartlettConfig().applies_to(solution)
    assert "leave it out" in DyckConfig().problems(hmm)[0][1]
    assert "no model of another language" in solution.problems(hmm)[0][1]
    few = DyckRandomFeaturesConfig(neurons=100).problems(Dyck(length=6))
    assert few[0][0] == "neurons"
    with pytest.raises(ConfigError, match="is no model of a HMM"):
        solution.subject(hmm)
