"""What is measured at a milestone: excess loss, Fisher trace, linear probe."""

from raysweep.evaluation.base import Arrays, Evaluation, Metric, Subject
from raysweep.evaluation.subject import LookupTable, ModelSubject

__all__ = ["Arrays", "Evaluation", "LookupTable", "Metric", "ModelSubject", "Subject"]
