"""The recurrence of an LSTM, unrolled so that the cotangents of its gates can be seen.

    (i, f, g, o) = gates_t,    gates_t = pre_t + W h_{t-1},    pre_t = W' x_t + b' + b
    c_t = σ(f) c_{t-1} + σ(i) tanh(g),    h_t = σ(o) tanh(c_t)

with the gates in PyTorch's order (Hochreiter and Schmidhuber, "Long short-term memory", 1997).  pre_t enters
gates_t alone, so its cotangent is that of the gates.  The gradients of both matrices and biases follow from
it, but PyTorch's own kernels do not return it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Recurrence(Function):
    """Map pre [T, B, 4H] and W [4H, H] to h [T, B, H] and c_T [B, H], starting from zero.

    Only `pre` has a gradient; no second derivatives.
    """

    @staticmethod
    def forward(ctx: Any, pre: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        steps, rows, width = len(pre), pre.shape[1], weight.shape[1]
        gates = torch.empty_like(pre)
        hidden = pre.new_empty(steps, rows, width)
        cells = pre.new_empty(steps, rows, width)
        across = weight.t()
        for t in range(steps):
            now = gates[t]
            if t:
                torch.addmm(pre[t], hidden[t - 1], across, out=now)
            else:
                now.copy_(pre[0])
            now[:, : 2 * width].sigmoid_()
            now[:, 2 * width : 3 * width].tanh_()
            now[:, 3 * width :].sigmoid_()
            i, f, g, o = now.chunk(4, dim=1)
            torch.mul(i, g, out=cells[t])
            if t:
                cells[t].addcmul_(f, cells[t - 1])
            torch.mul(o, cells[t].tanh(), out=hidden[t])
        ctx.save_for_backward(gates, cells, weight)
        return hidden, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None]:
        gates, cells, weight = ctx.saved_tensors
        upper, dc = cotangents
        dc = dc.clone()
        width = weight.shape[1]
        out = torch.empty_like(gates)
        dh = upper[-1]
        for t in range(len(gates) - 1, -1, -1):
            i, f, g, o = gates[t].chunk(4, dim=1)
            curved = cells[t].tanh()
            # d tanh(c) = 1 − tanh², d σ = σ(1 − σ)
            dc.addcmul_(dh * o, 1 - curved * curved)
            now = out[t]
            torch.mul(dc * g, i - i * i, out=now[:, :width])
            if t:
                torch.mul(dc * cells[t - 1], f - f * f, out=now[:, width : 2 * width])
            else:
                now[:, width : 2 * width].zero_()
            torch.mul(dc * i, 1 - g * g, out=now[:, 2 * width : 3 * width])
            torch.mul(dh * curved, o - o * o, out=now[:, 3 * width :])
            if t:
                dc.mul_(f)
                dh = torch.addmm(upper[t - 1], now, weight)
        return out, None
