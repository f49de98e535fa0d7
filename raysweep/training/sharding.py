"""Weights, gradients and optimizer state in pieces, one on each worker (FSDP2).

Each of n workers holds 1/n of the rows of every parameter, with its gradient and its optimizer state.  The
weights of a block (`MaskedLM.blocks`) are gathered for its forward and for its backward pass alone, while the
block before it computes, and its gradient is summed over the workers and shared out at once (Rajbhandari et
al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, stage 3; Zhao et al.,
"PyTorch FSDP", VLDB 2023).  All that belongs to no block, as embeddings and head, is gathered for the whole
pass.  So the loss, its gradient and the update are those of `DistributedDataParallel` up to rounding.

With fewer `shards` than workers, groups of neighbours hold a copy each (hybrid sharding): weights are
gathered within a group, and gradients are summed over all.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from raysweep.models.base import MaskedLM
from raysweep.training.data import World


def shard(objective: nn.Module, model: MaskedLM, world: World, device: torch.device) -> None:
    """Share out the weights of `model`, which is inside `objective`, whose forward pass a step calls.

    One block at a time is whole on `device`.  Gradients are summed over all workers.
    """
    # Imported here because it takes seconds, and hardly any run is sharded.
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = _mesh(device.type, world.size, world.shards)
    for block, methods in model.blocks().items():
        fully_shard(block, mesh=mesh)
        for method in methods:
            register_fsdp_forward_method(block, method)
    fully_shard(objective, mesh=mesh)
    for module in objective.modules():
        if isinstance(module, FSDPModule):
            # Without both, gradients are averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        if isinstance(module, MaskedLM):
            module.sharded = True


@lru_cache(maxsize=1)
def _mesh(kind: str, size: int, shards: int) -> Any:
    """Return the workers as a grid; runs that follow each other in a process share its groups."""
    from torch.distributed.device_mesh import init_device_mesh

    if shards == size:
        return init_device_mesh(kind, (size,))
    return init_device_mesh(kind, (size // shards, shards), mesh_dim_names=("copy", "shard"))
