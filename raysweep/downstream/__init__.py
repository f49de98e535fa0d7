"""Transfer of a representation to downstream tasks, and robustness of the weights.

The linear probe, fine-tuning, and weights that are rounded or disturbed.
"""

from raysweep.downstream.finetune import FineTuned, Recipe, fine_tune
from raysweep.downstream.probe import AdamW, Chunk, Convex, ProbeResult, linear_probe
from raysweep.downstream.quantize import noisy, quantized

__all__ = [
    "AdamW", "Chunk", "Convex", "FineTuned", "ProbeResult", "Recipe", "fine_tune", "linear_probe", "noisy",
    "quantized",
]  # fmt: skip
