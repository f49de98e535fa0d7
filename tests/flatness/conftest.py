"""A tiny encoder with no symmetry left in it, and the dense Jacobian as the oracle."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from raysweep.models.encoder import Encoder, EncoderConfig

VOCABULARY = 5


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Encoder]:
    """Return a maker of encoders whose weights, biases and LayerNorms are all random."""

    def make(
        norm: str = "pre",
        dtype: torch.dtype = torch.float64,
        length: int = 4,
        noise: float = 0.4,
        shape: str = "8/2/2/12",
    ) -> Encoder:
        language = SimpleNamespace(vocabulary_size=VOCABULARY, pad_id=VOCABULARY, max_length=length)
        model = EncoderConfig(shape=shape, norm=norm).build(language, seed=3).to(dtype)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=dtype)
        return model

    return make


@pytest.fixture(scope="session")
def make_ids() -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a maker of sentences of every length, words often repeated, with a position in each."""

    def make(n: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCABULARY, (n, length), generator=generator)
        lengths = torch.arange(n) % length + 1
        ids[torch.arange(length) >= lengths[:, None]] = VOCABULARY
        positions = (torch.rand(n, generator=generator) * lengths).long()
        return ids, positions

    return make


@pytest.fixture(scope="session")
def dense_jacobians() -> Callable[..., list[list[Tensor]]]:
    """Return a function that gives the Jacobian [V, size] of each input and parameter, row by row."""

    def jacobians(model: nn.Module, masked: Tensor, positions: Tensor) -> list[list[Tensor]]:
        model.eval()
        parameters = [p for p in model.parameters() if p.requires_grad]
        out = []
        for row in range(len(masked)):
            logits = model(masked[row : row + 1], positions[row : row + 1])[0]
            rows = [torch.autograd.grad(z, parameters, retain_graph=True, allow_unused=True) for z in logits]
            out.append(
                [
                    torch.stack(
                        [torch.zeros_like(p).flatten() if g[k] is None else g[k].flatten() for g in rows]
                    )
                    for k, p in enumerate(parameters)
                ]
            )
        return out

    return jacobians


@pytest.fixture(scope="session")
def dense_traces(dense_jacobians: Callable[..., list[list[Tensor]]]) -> Callable[..., Tensor]:
    """Return a function that gives Tr Jᵀ(diag p − ppᵀ)J by input and parameter, from dense Jacobians."""

    def traces(model: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
        masked = ids.clone()
        masked[torch.arange(len(ids)), positions] = VOCABULARY + 1
        out = []
        for row, jacobian in enumerate(dense_jacobians(model, masked, positions)):
            p = model(masked[row : row + 1], positions[row : row + 1])[0].detach().double().softmax(0)
            middle = torch.diag(p) - torch.outer(p, p)
            out.append(torch.stack([torch.trace(j.double().T @ middle @ j.double()) for j in jacobian]))
        return torch.stack(out)

    return traces
