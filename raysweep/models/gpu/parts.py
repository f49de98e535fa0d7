"""Parts of the passes of a GPU: sites of dropout, tiles, weights in low precision, and small steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.models.gpu import kernels

#: Programs that a sum over words is shared by; the order of its terms depends on them.
PROGRAMS = 264
#: Rows of both embeddings together up to which their gradient is a product with a matrix of zeros and ones.
_FEW = 1024
#: Elements of a tile, which a program has in registers, and those of a pass over a plain array.
_TILE = 2048
_ELEMENTS = 1024
#: Steps of a loop over rows whose loads are under way at once, into shared memory.
_STAGES = 3
_LEVELS = 1 << 32


@dataclass(frozen=True)
class Site:
    """A place where dropout acts: its number, and the draw from which on it keeps an element.

    Without a draw and a scale nothing is dropped there.
    """

    number: int
    cut: int = 0
    scale: float = 1.0

    @classmethod
    def of(cls, number: int, p: float) -> Site:
        # At least one level keeps, so the scale is finite.
        cut = min(round(p * _LEVELS), _LEVELS - 1)
        # As int32, so that the type of the kernels' argument does not depend on the value.
        return cls(number, cut if cut < _LEVELS // 2 else cut - _LEVELS, _LEVELS / (_LEVELS - cut))

    @property
    def drops(self) -> bool:
        return self.cut != 0


@cache
def columns_of(width: int) -> int:
    """Return the power of two that holds `width` columns; products of tiles need sixteen."""
    return max(16, 1 << (width - 1).bit_length())


@dataclass(frozen=True)
class Tile:
    """Rows of `width` columns that a program works on at once; numbers of a tile are powers of two."""

    width: int
    rows: int
    columns: int
    warps: int

    @classmethod
    @cache
    def of(cls, width: int) -> Tile:
        columns = columns_of(width)
        return cls(width, max(1, _TILE // columns), columns, min(16, max(4, columns // 256)))

    @property
    def stages(self) -> int:
        """The steps of a loop whose loads are under way at once: few enough for every GPU's shared memory."""
        return _STAGES if self.columns <= _TILE else 1

    def grid(self, rows: int, most: int | None = None) -> tuple[int]:
        """Return the number of programs for `rows` rows, `most` at most."""
        needed = -(-rows // self.rows)
        return (needed if most is None else min(needed, most),)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b in float32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


@dataclass(frozen=True)
class Linear:
    """A weight [O, I] and a bias [O] in low precision, and the parameters that they are made of."""

    weight: Tensor
    bias: Tensor
    modules: tuple[nn.Linear, ...]

    def apply(self, x: Tensor) -> Tensor:
        """Return x [N, I] times the weight, transposed, plus the bias."""
        return F.linear(x, self.weight, self.bias)

    def back(self, d: Tensor, x: Tensor, bias: Tensor, gradients: dict[int, Tensor]) -> Tensor:
        """Store the parameters' gradients; return that of x, given d [N, O] and its sums `bias` [O]."""
        weight = product(d.T, x)
        size = len(weight) // len(self.modules)
        for module, of_weight, of_bias in zip(
            self.modules, weight.split(size), bias.split(size), strict=True
        ):
            gradients[id(module.weight)], gradients[id(module.bias)] = of_weight, of_bias
        return d @ self.weight


def low_precision(groups: Sequence[tuple[nn.Linear, ...]], dtype: torch.dtype) -> list[Linear]:
    """Return each group of modules as one `Linear` in `dtype`, their outputs one after the other."""
    wide: list[Tensor] = []
    low: list[Tensor] = []
    found = []
    for modules in groups:
        given = modules[0].weight
        out, into = given.shape
        weight = given.new_empty(len(modules) * out, into, dtype=dtype)
        bias = given.new_empty(len(modules) * out, dtype=dtype)
        wide += [m.weight.detach() for m in modules] + [m.bias.detach() for m in modules]
        low += [*weight.split(out), *bias.split(out)]
        found.append(Linear(weight, bias, modules))
    # One pass for all of them.
    torch._foreach_copy_(low, wide)
    return found


def spread(x: Tensor, places: Tensor, size: int) -> Tensor:
    """Return `size` rows: those of x [M, D] at `places` [M], which differ, and zeros; both are contiguous."""
    out, tile = x.new_zeros(size, x.shape[1]), Tile.of(x.shape[1])
    kernels.spread[tile.grid(len(x))](
        x, places, out, len(x), tile.width, M=tile.rows, C=tile.columns, num_warps=tile.warps
    )
    return out


def tables_back(slopes: Tensor, *tables: tuple[Tensor, int]) -> list[Tensor]:
    """Return the gradient of each table of embeddings, (index [N], number of rows), from `slopes` [N, 2, D].

    These are the gradient of each sum of embeddings and what it was rounded by.
    """
    sizes = [rows for _, rows in tables]
    if sum(sizes) > _FEW:
        # A product would take too long, and torch's kernel adds in a fixed order here
        # (`raysweep.models.reproducible`).
        whole = slopes.float().sum(dim=1)
        return [
            torch.ops.aten.embedding_dense_backward(whole, index, rows, -1, False) for index, rows in tables
        ]
    first = [0, *accumulate(sizes)]
    index = torch.stack([one + start for (one, _), start in zip(tables, first, strict=False)], dim=1)
    chosen = slopes.new_zeros(len(slopes), sum(sizes)).scatter_(1, index, 1.0)
    found = product(chosen.T, slopes.flatten(1)).unflatten(1, (2, -1)).sum(dim=1)
    return list(found.split(sizes))


def total(sums: Tensor) -> Tensor:
    """Return the sum of the parts of programs [programs, ...]."""
    out = sums.new_empty(sums.shape[1:])
    kernels.total[(-(-out.numel() // 16),)](sums, out, len(sums), out.numel(), M=128, C=16, num_warps=8)
    return out


def gelu(x: Tensor) -> Tensor:
    """Return x Φ(x) of x [N, F]."""
    out = torch.empty_like(x)
    kernels.gelu[(-(-x.numel() // _ELEMENTS),)](x, out, x.numel(), B=_ELEMENTS)
    return out


def gelu_back(x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x [N, F], given that of gelu(x), and its sums over rows [F]."""
    tile, grid = _tiling(x)
    out, sums = torch.empty_like(x), x.new_empty(grid[0], x.shape[1], dtype=torch.float32)
    kernels.gelu_back[grid](
        x, slope, out, sums, *x.shape,
        M=tile.rows, C=tile.columns, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out, total(sums)


def normed(x: Tensor, norm: nn.LayerNorm, dtype: torch.dtype) -> Tensor:
    """Return the norm of x [N, D] in `dtype`."""
    out, tile = torch.empty_like(x, dtype=dtype), Tile.of(x.shape[1])
    # Nothing is added or dropped here, so x also stands where no key and no sum are.
    kernels.residual[tile.grid(len(x))](
        x, norm.weight, norm.bias, None, norm.weight, norm.bias, x, out,
        len(x), tile.width, norm.eps, norm.eps, x, 0, 0, 1.0,
        M=tile.rows, C=tile.columns, NORMED=False, ADD=False, DROP=False, num_warps=tile.warps,
    )  # fmt: skip
    return out


def normed_back(
    x: Tensor, norm: nn.LayerNorm, slope: Tensor, later: Tensor | None, gradients: dict[int, Tensor]
) -> Tensor:
    """Store the gradients of a norm's parameters; return that of x [N, D], given that of the norm of x.

    `later`, where there is one, is added to the gradient of x.
    """
    out, tile = torch.empty_like(x), Tile.of(x.shape[1])
    grid = tile.grid(len(x), PROGRAMS)
    sums = x.new_empty(*grid, 3, tile.width, dtype=torch.float32)
    kernels.residual_back[grid](
        x, norm.weight, slope, later, out, slope, sums,
        len(x), tile.width, norm.eps, x, 0, 0, 1.0,
        M=tile.rows, C=tile.columns, NORMED=False, LATER=later is not None, ADD=False,
        DROP=False, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    gradients[id(norm.weight)], gradients[id(norm.bias)], _ = total(sums)
    return out


def cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ exp of each row of logits [M, V], and -log softmax at `targets` [M]: both [M], float32.

    Logits are finite, and targets 0 .. V - 1: nothing waits for the GPU, so nothing looks.
    """
    whole = logits.new_empty(len(logits), dtype=torch.float32)
    losses, tile = torch.empty_like(whole), Tile.of(min(logits.shape[1], _ELEMENTS))
    kernels.cross_entropy[tile.grid(len(logits))](
        logits, targets, whole, losses, *logits.shape, M=tile.rows, C=tile.columns, num_warps=tile.warps
    )
    return whole, losses


def cross_entropy_back(
    logits: Tensor, targets: Tensor, whole: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of logits [M, V], given that of each loss, a scalar; and its sums over rows [V]."""
    tile, grid = _tiling(logits)
    out, sums = torch.empty_like(logits), whole.new_empty(grid[0], logits.shape[1])
    kernels.cross_entropy_back[grid](
        logits, targets, whole, slope, out, sums, *logits.shape,
        M=tile.rows, C=tile.columns, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out, total(sums)


def _tiling(x: Tensor) -> tuple[Tile, tuple[int, int]]:
    """Return the tile and grid of programs that each work on some rows of some columns of x [N, F]."""
    tile = Tile.of(min(x.shape[1], 128))
    across = -(-x.shape[1] // tile.columns)
    [down] = tile.grid(len(x), max(1, 2 * PROGRAMS // across))
    return tile, (down, across)
