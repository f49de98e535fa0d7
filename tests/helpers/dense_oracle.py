"""Dense derivatives of a tiny model, one backward pass a row: slow and obvious."""

from types import SimpleNamespace

import torch

from raysweep.models.encoder import EncoderConfig
from raysweep.models.lstm import LSTMConfig


def tiny_model(norm="pre", words=5, length=3):
    """Return an encoder of about 250 parameters, none of them at its initial value, float64."""
    return _moved(EncoderConfig(shape="4/1/1/6", norm=norm), words, length)


def tiny_lstm(words=5, length=3):
    """Return an LSTM of about 150 parameters, none of them at its initial value, float64."""
    return _moved(LSTMConfig(shape="4/1"), words, length)


def _moved(config, words, length):
    language = SimpleNamespace(vocabulary_size=words, pad_id=words, max_length=length)
    model = config.build(language, seed=3).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model.eval()


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors])


def jacobian(model, masked, position):
    """Return logits [C] and their Jacobian [C, P] at one input, padding cut off."""
    length = int((masked != model.pad_id).sum())
    parameters = [p for p in model.parameters() if p.requires_grad]
    logits = model(masked[None, :length], position[None])[0]
    rows = [torch.autograd.grad(z, parameters, retain_graph=True, allow_unused=True) for z in logits]
    filled = [
        [torch.zeros_like(p) if g is None else g for g, p in zip(row, parameters, strict=True)]
        for row in rows
    ]
    return logits.detach(), torch.stack([flat(row) for row in filled])


def gauss_newton(model, masked, positions):
    """Return the Gauss-Newton matrices [n, P, P]."""
    found = []
    for row in range(len(masked)):
        logits, j = jacobian(model, masked[row], positions[row])
        p = logits.softmax(0)
        found.append(j.T @ (torch.diag(p) - torch.outer(p, p)) @ j)
    return torch.stack(found)


def hessians(model, masked, positions, probabilities):
    """Return the Hessians [n, P, P] of − Σ_w q(w) log f(w), with q the rows of `probabilities` [n, C]."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = []
    for row in range(len(masked)):
        length = int((masked[row] != model.pad_id).sum())
        logits = model(masked[row : row + 1, :length], positions[row : row + 1])[0]
        loss = -(probabilities[row] * logits.log_softmax(0)).sum()
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        rows = []
        for value in flat(gradient):
            second = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            rows.append(
                flat(torch.zeros_like(p) if g is None else g for g, p in zip(second, parameters, strict=True))
            )
        found.append(torch.stack(rows))
    return torch.stack(found)
