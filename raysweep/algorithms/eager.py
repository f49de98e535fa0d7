"""torch's optimizers without torch's compiler, which takes as long to import as torch itself.

torch's own import it (`torch._dynamo`) at their first use, because decorators keep it from tracing their
methods.  Here the methods are without these decorators.  The numbers are the same; the option
`differentiable` has no effect.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class EagerOptimizer(Optimizer):
    """Base of optimizers that are not compiled."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class SGD(EagerOptimizer, torch.optim.SGD):
    """`torch.optim.SGD`."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class Muon(EagerOptimizer, torch.optim.Muon):
    """`torch.optim.Muon`."""

    step = torch.no_grad()(unwrap(torch.optim.Muon.step))
