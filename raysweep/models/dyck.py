"""One attention layer and a ReLU on bracket strings, and two solutions of its pre-training task.

With encodings x_1, ..., x_T in R^2T of a string (raysweep.languages.dyck) and m neurons,

    f(x) = (1/m) uᵀ σ(V h(x)),      h(x) = Σ_j a_j x_j,      a = softmax_j ⟨Q x_1, K x_j⟩,

is to be g*(x), the number of > less the number of <, under squared loss (Liu, Xie, Li and Ma, "Same
Pre-training Loss, Better Downstream", ICML 2023, section 5 and appendix G).  At zero loss the Hessian of
E(f − g*)² is 2 E ∇f ∇fᵀ.  As ‖h‖ ≥ 1/√T and |g*| = 1,

    Tr ∇²L = 2 E‖∇f‖² ≥ (2/m²) E Σ_i (σ(V_i·h)² + u_i² 1[V_i·h > 0] ‖h‖²) ≥ (4/m) E ‖h‖ |f| ≥ 4 / (m √T).

This is the paper's √(4/T) for m = 2.  Its lemma G.1 has √(4/T) for every m: it leaves out the factor 2 of the
Hessian and squares the factor 1/m of f to 1/m.  (Appendix G.2 has ‖h‖ = 1/T, which is 1/√T, as in G.1.)

*Two neurons.*  With Q = K = 0 the attention is the average, and with 1 over the T places of the brackets

    V_1 = −V_2 = c (1, 0),      u_1 = −u_2 = −c/√T,      c = √m T^(3/4),

is g* everywhere and meets the bound; further neurons are zero.

*Random features.*  Q = K = 0, V_i ~ N(0, T I), and u is the smallest vector with f = g* on all masked
sentences.  There are 2T·C(T, T/2) of them, and that many neurons suffice; theorem G.6 asks for O(2^T T³/ε²)
neurons for an error ε.

>>> two = two_neurons(6)
>>> population = Dyck(length=6).population()
>>> x = Dyck(length=6).encode(population.ids, population.mask_signs)
>>> bool((two(x) - population.targets).abs().max() < 1e-12)
True
>>> round(hessian_trace(two, x), 9) == round((4 / 6) ** 0.5, 9)
True
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from raysweep import seeding
from raysweep.errors import ConfigError, DataError
from raysweep.languages.dyck import Dyck

#: Gradients [B, p] in float64 at once: 64 MB.
_GRADIENTS = 1 << 23

#: Features of all masked sentences that may be solved for: 512 MB.
_MOST_FEATURES = 1 << 26


class DyckAttention(nn.Module):
    """The model of the module's text, float64, all parameters zero.

    Parameters: `query` and `key` [k, 2T], `value` [m, 2T], `output` [m].  `length` is T.
    """

    def __init__(self, length: int, neurons: int, *, keys: int = 1) -> None:
        super().__init__()
        if length < 2 or length % 2 or neurons < 1 or keys < 1:
            raise ConfigError(
                f"length={length}, neurons={neurons}, keys={keys}: length must be even, all positive"
            )
        self.length, self.neurons = length, neurons
        self.query = _zeros(keys, 2 * length)
        self.key = _zeros(keys, 2 * length)
        self.value = _zeros(neurons, 2 * length)
        self.output = _zeros(neurons)

    def features(self, x: Tensor) -> Tensor:
        """Return σ(V h(x)) [B, m] of encodings [B, T, 2T]."""
        scores = torch.einsum("kd,bd,ke,bte->bt", self.query, x[:, 0], self.key, x)
        mixed = torch.einsum("bt,btd->bd", scores.softmax(dim=-1), x)
        return (mixed @ self.value.T).relu()

    def forward(self, x: Tensor) -> Tensor:
        """Return f [B] of encodings [B, T, 2T]."""
        return self.features(x) @ self.output / self.neurons


def _zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=torch.float64))


def two_neurons(length: int, *, neurons: int = 2) -> DyckAttention:
    """Return the two-neuron solution, which meets the bound, in a model of at least two neurons."""
    if neurons < 2:
        raise ConfigError(f"neurons: {neurons} is fewer than the two of the solution; use 2 or more")
    model = DyckAttention(length, neurons)
    scale = math.sqrt(neurons) * length**0.75
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
    with torch.no_grad():
        model.value[:2, :length] = scale * signs[:, None]
        model.output[:2] = -scale / math.sqrt(length) * signs
    return model


def masked_sentences(length: int) -> int:
    """Return the number of masked sentences with both signs of the mask, 2T·C(T, T/2).

    >>> masked_sentences(6) == len(Dyck(length=6).population().ids)
    True
    """
    return 2 * length * math.comb(length, length // 2)


def random_features_problem(length: int, neurons: int) -> str | None:
    """Return why this many random features cannot solve the task; None if they can."""
    inputs = masked_sentences(length)
    if neurons < inputs:
        return (
            f"{neurons} random features cannot fit the {inputs} masked sentences of {length} brackets; "
            f"take at least {inputs}, or shorter sentences"
        )
    if inputs * neurons > _MOST_FEATURES:
        return (
            f"{neurons} features of {inputs} masked sentences are more than {_MOST_FEATURES} numbers; "
            "take shorter sentences"
        )
    return None


def random_features(length: int, *, neurons: int, seed: int = 0) -> DyckAttention:
    """Return random features with the least output weights that solve the pre-training task.

    Raises `ConfigError` for fewer neurons than there are masked sentences, and for too many of both.
    """
    problem = random_features_problem(length, neurons)
    if problem is not None:
        raise ConfigError(f"neurons: {problem}")
    language, model = Dyck(length=length), DyckAttention(length, neurons)
    population = language.population()
    generator = seeding.generator(seed, "dyck random features")
    with torch.no_grad():
        model.value.normal_(std=math.sqrt(length), generator=generator)
        features = model.features(language.encode(population.ids, population.mask_signs))
        model.output.copy_(least_output(features, population.targets))
    return model


def least_output(features: Tensor, targets: Tensor) -> Tensor:
    """Return the u [m] of least norm among those with the least squared error of features·u/m = targets.

    `features` are [n, m], `targets` [n], float64.
    """
    m = features.shape[1]
    solved = torch.linalg.lstsq(features / m, targets[:, None], driver="gelsd")
    u: Tensor = solved.solution[:, 0]
    return u


def bound(length: int, neurons: int) -> float:
    """Return the least trace of the Hessian at zero loss, 4/(m√T): √(4/T) for two neurons."""
    return 4 / (neurons * math.sqrt(length))


def expected_accuracy(length: int, examples: float) -> float:
    """Return the expected share of strings that the two neurons classify correctly after n `examples`.

    Strings with g* = 0 are always correct; their probability is p_0 = C(T, T/2)/2^T.  Strings of a sign are
    correct once an example of that sign has been seen: p_0 + (1 − p_0)(1 − (1 − (1 − p_0)/2)^n).  With n = 0
    it is the share of strings with g* = 0; fractional n gives a smooth curve.

    >>> expected_accuracy(6, 0), expected_accuracy(6, 1) == 0.3125 + 0.6875**2 / 2
    (0.3125, True)
    """
    even = math.comb(length, length // 2) / 2**length
    return even + (1 - even) * (1 - (1 - (1 - even) / 2) ** examples)


def hessian_trace(model: DyckAttention, x: Tensor, *, targets: Tensor | None = None) -> float:
    """Return Tr ∇²L = 2 E‖∇f‖² of a model with zero loss over equally probable encodings `x` [N, T, 2T].

    With `targets` [N] the loss is checked; raises `DataError` where it is not zero.
    """
    if targets is not None:
        worst = float((model(x).detach() - targets).abs().max())
        if worst > 1e-6:
            raise DataError(
                f"the model is off its targets by up to {worst:.2g}: 2 E‖∇f‖² is the Hessian's trace only "
                "where the loss is zero"
            )
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        value: Tensor = functional_call(model, parameters, (x[None],))[0]
        return value

    def square(x: Tensor) -> Tensor:
        slopes = grad(one)(parameters, x)
        return torch.stack([slope.square().sum() for slope in slopes.values()]).sum()

    rows = max(1, _GRADIENTS // sum(p.numel() for p in parameters.values()))
    total = torch.stack([vmap(square)(part).sum() for part in x.split(rows)]).sum()
    return 2 * float(total) / len(x)
