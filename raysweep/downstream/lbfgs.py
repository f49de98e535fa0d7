"""The minimum of many logistic regressions at once, by L-BFGS.

    W ← W - t H ∇F(W)

with F the objective, H the inverse Hessian as the last steps show it, and a length t that is halved until F
falls.

Inputs are turned to their principal axes first, in which directions without variance drop out.  F does not
depend on coordinates, and in these and in turned classes its Hessian is nearly diagonal
(`raysweep.downstream.curvature`).  Its inverse is the initial matrix of L-BFGS (Liu and Nocedal, "On the
limited memory BFGS method for large scale optimization", Mathematical Programming 45, 1989), scaled by the
last step as usual.

The heads are found in the quarter of the axes with the most variance first, roughly.  There a pass costs a
quarter, and the curvature of the heads found is far nearer to that of the minimum than at zero.  The second
solve starts from them, in all axes, and alone decides on the gap.  Every problem has its own steps, with a
backtracking line search, and is dropped where its gap is within the tolerance.

Turning G groups of n inputs costs 4 G n (K+1)² operations and two more copies of them, 8 G n (K+1) bytes; one
copy stays.  Where they are known to span r < 3 (K+1) / 4 directions, it costs 2 G n r (K+1 + 2 r) operations
and three copies of r columns.  A pass costs what `raysweep.downstream.logistic` says.  The steps that are
remembered take 64 bytes for each weight of a head.

Float32 leaves rounding in ‖∇F‖, 4e-8 with 512 rows of 65 inputs, so no gap is known to be below about
7e-16 n / l2 nats there.  Where that is above the tolerance, a problem ends unconverged, and its gap says so.

>>> inputs = Inputs(x=torch.tensor([[[2.0, 1.0], [-2.0, 1.0]]]), y=torch.tensor([[[0], [1]]]))
>>> found = solve(inputs, [Problem(task=0, classes=2, rows=2)], torch.ones(1, 1), tolerance=1e-3)
>>> found.heads.shape, bool(found.gap <= 1e-3)
(torch.Size([1, 1, 2, 2]), True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.downstream.absent import Ranking
from raysweep.downstream.curvature import Curvature
from raysweep.downstream.logistic import Inputs, Objective, Problem, dot

MEMORY = 8  # steps that L-BFGS remembers
_LEADING = 4  # all axes by those of the first solve
_ROUGH = 100  # tolerance of the first solve by that of the second
_HALVINGS = 30  # of a step before a problem is given up: its arithmetic is at its limit
_NOISE = 1e-7  # relative rounding of an objective


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Heads [G, P, C, K+1], the bound on their distance from the least objective `gap` [G, P], and its cost.

    `value` [G, P] are the objectives, float64; `passes` is the number of times that rows were read in all
    axes, the most of any problem.
    """

    heads: Tensor
    value: Tensor
    gap: Tensor
    passes: int


def solve(
    inputs: Inputs, problems: Sequence[Problem], l2: Tensor, *, tolerance: float | Tensor, passes: int = 2000
) -> Solution:
    """Minimise the objectives of problems with penalties l2 [G, P] to within `tolerance` nats, one or [P].

    Ends after so many passes over the rows at the latest, in some axes and then in all; `gap` says how far it
    came.
    """
    axes, turned = principal_axes(inputs)
    rankings = {p.task: Ranking.of(inputs.y[:, :, p.task], p.classes) for p in problems}
    y = inputs.y.clone()
    for task, ranking in rankings.items():
        y[:, :, task] = ranking.rank[y[:, :, task]]
    merged = [rankings[problem.task].merged(problem) for problem in problems]
    near = torch.as_tensor(tolerance)
    heads = turned.new_zeros(*l2.shape, max(problem.classes for problem in merged), 0)
    for leading, scale in ((-(-turned.shape[2] // _LEADING), _ROUGH), (turned.shape[2], 1)):
        objective = Objective(replace(inputs, x=turned[:, :, :leading], y=y, span=None), merged, l2)
        heads = F.pad(heads, (0, leading - heads.shape[3]))
        found = minimise(objective, heads, tolerance=scale * near, passes=passes)
        heads = found.heads
    turned_back = found.heads @ axes[:, None].mT
    most = max(problem.classes for problem in problems)
    heads = turned_back.new_zeros(*l2.shape, most, axes.shape[1])
    for k, problem in enumerate(merged):
        heads[:, k, : problems[k].classes] = rankings[problem.task].of_all_classes(turned_back[:, k], problem)
    return replace(found, heads=heads)


def principal_axes(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return orthonormal directions [G, K, r] of inputs x [G, n, K], and x [G, n, r] in their coordinates.

    Those with the most variance come first.  Directions in which no group has more than rounding are left
    out.
    """
    x, axes, span = inputs.x, None, inputs.span
    if span is None or x.shape[1] < span.shape[2]:
        span = x.mT
    if 4 * span.shape[2] < 3 * x.shape[2]:
        # Few directions hold all inputs, and are cheaper to look at: those of few sentences or features.
        axes = torch.linalg.qr(span).Q
        x = x @ axes
    # Any orthonormal directions near the axes will do, so float32 suffices; directions with less than about
    # 1e-7 of the variance are mixed with those that have none, and some of these stay.
    turn = torch.linalg.eigh(x.mT @ x).eigenvectors.flip(2)
    turned = x @ turn
    squares = turned.square().sum(dim=1)
    kept = (squares > 1e-10 * squares.amax(dim=1, keepdim=True)).any(dim=0)
    turn = turn[:, :, kept]
    return turn if axes is None else axes @ turn, turned[:, :, kept]


def minimise(objective: Objective, heads: Tensor, *, tolerance: Tensor, passes: int) -> Solution:
    """Minimise objectives from heads [G, P, C, K+1], in the coordinates of their inputs."""
    near = tolerance.to(objective.penalty).expand(len(objective.problems))
    value, gap = torch.zeros_like(objective.penalty), torch.zeros_like(objective.penalty)
    left = torch.arange(len(objective.problems), device=heads.device)
    state, heads = _State(objective, heads), torch.zeros_like(heads)
    while True:
        done = state.gap() <= near[left]
        over = state.passes >= passes
        finished = (done | (state.halvings >= _HALVINGS)).all(dim=0) | over
        if bool(finished.any()):
            at = left[finished]
            heads[:, at, : state.heads.shape[2]] = state.heads[:, finished]
            value[:, at], gap[:, at] = state.value[:, finished], state.gap()[:, finished]
            left, done = left[~finished], done[:, ~finished]
            if len(left) == 0:
                return Solution(heads=heads, value=value, gap=gap, passes=state.passes)
            state.keep(~finished)
        state.step(done)


class _State:
    """The problems that are not finished: where they are, and where they go."""

    def __init__(self, objective: Objective, heads: Tensor) -> None:
        self.objective, self.heads, self.passes = objective, heads, 1
        self.value, self.gradient = objective(heads)
        self.curvature = Curvature.of(objective, heads)
        #: Steps, changes of the gradient, and 1 / their products; zero where a problem took none.
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self.direction = -self.curvature.solve(self.gradient)
        self.length = torch.ones_like(self.value)
        self.halvings = torch.zeros_like(self.value)

    def gap(self) -> Tensor:
        """Return the bound on the distance of each problem from its least objective [G, P]."""
        return self.objective.gap(self.gradient)

    def keep(self, kept: Tensor) -> None:
        """Drop all problems but those that `kept` [P] marks."""
        self.objective = self.objective.only(kept)
        most = self.objective.classes
        self.pairs = [(s[:, kept, :most], y[:, kept, :most], rho[:, kept]) for s, y, rho in self.pairs]
        self.heads, self.gradient, self.direction = (
            part[:, kept, :most] for part in (self.heads, self.gradient, self.direction)
        )
        self.curvature = self.curvature.only(kept, most)
        self.value, self.length, self.halvings = (
            part[:, kept] for part in (self.value, self.length, self.halvings)
        )

    def step(self, done: Tensor) -> None:
        """Try a step in every problem that is not `done` [G, P]; halve those that do not reach far enough."""
        length = torch.where(done, 0.0, self.length)
        trial = self.heads + _spread(length, self.heads) * self.direction
        value, gradient = self.objective(trial)
        self.passes += 1
        wanted = self.value + 1e-4 * length * dot(self.gradient, self.direction)
        taken = (value <= wanted + _NOISE * self.value.abs()) & ~done
        mark = _spread(taken, self.heads).bool()
        step = torch.where(mark, trial - self.heads, 0.0)
        change = torch.where(mark, gradient - self.gradient, 0.0)
        product = dot(step, change)
        rho = torch.where(product > 0, 1 / product.clamp_min(1e-300), 0.0)
        self.pairs = [*self.pairs, (step, change, rho)][-MEMORY:]
        self.heads, self.value = self.heads + step, torch.where(taken, value, self.value)
        self.gradient = self.gradient + change
        self.direction = torch.where(mark, self._direction(), self.direction)
        self.length = torch.where(taken, 1.0, self.length / 2)
        self.halvings = torch.where(taken | done, 0.0, self.halvings + 1)

    def _direction(self) -> Tensor:
        """Return minus the inverse Hessian, as the remembered steps show it, times the gradient."""
        found, shares = -self.gradient, []
        for step, change, rho in reversed(self.pairs):
            share = rho * dot(step, found)
            found = found - _spread(share, found) * change
            shares.append(share)
        step, change, rho = self.pairs[-1]
        scale = dot(step, change) / dot(change, self.curvature.solve(change)).clamp_min(1e-300)
        found = _spread(torch.where(rho > 0, scale, 1.0), found) * self.curvature.solve(found)
        for (step, change, rho), share in zip(self.pairs, reversed(shares), strict=True):
            found = found + _spread(share - rho * dot(change, found), found) * step
        return found


def _spread(numbers: Tensor, heads: Tensor) -> Tensor:
    """Return numbers [G, P] as factors of heads [G, P, C, K+1]."""
    return numbers.to(heads)[:, :, None, None]
