"""Ghost norms against Opacus, which has its own, input by input."""

from types import SimpleNamespace

import pytest
import torch

from raysweep.bench.peers.gradient_norms import Opacus, untied
from raysweep.flatness.norms.ghost import GhostNorms
from raysweep.models.encoder import EncoderConfig
from raysweep.models.lstm import LSTMConfig

V, T = 7, 6


@pytest.mark.parametrize(
    "config",
    [
        EncoderConfig(shape="8/2/2/12", norm="pre", dropout=0.0),
        EncoderConfig(shape="8/2/2/12", norm="post", dropout=0.0),
        LSTMConfig(shape="8/2", dropout=0.0),
    ],
    ids=["pre", "post", "lstm"],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_norms_are_those_of_opacus(config, dtype, tolerance):
    language = SimpleNamespace(vocabulary_size=V, pad_id=V, max_length=T)
    model = untied(config.build(language, seed=3)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    ids = torch.randint(0, V, (12, T), generator=generator)
    positions = torch.randint(0, T, (12,), generator=generator)
    ids = ids.scatter(1, positions[:, None], V + 1)
    labels = torch.randint(0, V, (12,), generator=generator)
    with GhostNorms(model) as ghost:
        z = ghost.forward(ids, positions)
        # ∂ log f_y / ∂z
        ours = ghost.norms(torch.nn.functional.one_hot(labels, z.shape[1]).to(z) - z.softmax(dim=1))
    peer = Opacus(model)
    theirs = peer.of(peer.logits(ids, positions), labels)
    assert theirs.dtype == dtype
    torch.testing.assert_close(theirs.double(), ours.sum(dim=1), rtol=tolerance, atol=0)
    assert theirs.max() > 2 * theirs.min()
