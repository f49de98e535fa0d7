"""Steps of a small model on a processor that go from the sums of gradients to the weights at once.

A compiled step (`raysweep.models.fused.step`) sums gradients in memory that it keeps for the next one, and
AdamW can read them there (`raysweep.algorithms.onepass`).  To hand out a gradient for each parameter and look
at it again takes longer than the arithmetic of a model of some ten thousand weights.  The weights are
bitwise the same either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch


class DirectSteps:
    """The updates of one model by one optimizer.

    Between two of them nobody moves weights or states to another place.  States may be loaded.
    """

    def __init__(self, model: MaskedLM, optimizer: Any, dtype: torch.dtype) -> None:
        self.model, self.optimizer, self.dtype = model, optimizer, dtype
        #: The optimizer's steps from the sums of weights.
        self._steps: WeakKeyDictionary[Any, Callable[[], bool]] = WeakKeyDictionary()
        #: True once the optimizer has no such step, as where sums of two parameters lie side by side (LSTMs).
        self._never = False

    @staticmethod
    def serve(model: MaskedLM, optimizer: Optimizer, algorithm: AlgorithmConfig) -> bool:
        """Return whether steps of this kind can be direct."""
        # What holds for a model or an optimizer need not hold for one that learns or steps in its own way.
        as_known = type(model).learn is MaskedLM.learn and "step_from" in vars(type(optimizer))
        return as_known and model.fused and algorithm.keeps_gradient

    def update(self, words: Batch, seed: int, mark: Callable[[str], None] | None) -> Tensor:
        """Update the weights and return the loss, detached; `seed` is that of the step's dropout.

        The learning rate is that of the optimizer's groups.  `mark` hears when the gradients are there.
        """
        step = self.model.compiled_step(words, seed=seed, dtype=self.dtype)
        loss, weights = step.done()
        if mark is not None:
            mark("forward+backward")
        if self._apply(weights):
            step.put_by(weights)
        else:
            step.give(weights)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return step.parameters[0].new_tensor(loss)

    def _apply(self, weights: Any) -> bool:
        """Do the optimizer's step from the sums of weights; return False, with nothing done, if it cannot."""
        known = self._steps.get(weights)
        if known is not None and known():
            return True
        # Without states, the optimizer begins with a step by way of `.grad`.
        if self._never or not self.optimizer.state:
            return False
        found = self.optimizer.step_from(weights.sums)
        if found is None:
            self._never = True
            return False
        self._steps[weights] = found
        done: bool = found()
        return done
