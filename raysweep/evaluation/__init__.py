"""What is measured at a milestone: excess loss, Fisher trace, linear probe."""

from raysweep.evaluation.base import Arrays, Evaluation, Metric, Subject

__all__ = ["Arrays", "Evaluation", "Metric", "Subject"]
