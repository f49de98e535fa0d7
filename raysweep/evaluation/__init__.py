"""What is measured at a milestone: excess loss, Fisher trace, linear probe."""

from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.subject import LookupTable, ModelSubject

__all__ = ["Arrays", "Evaluation", "LookupTable", "Metric", "ModelSubject", "Quantity", "Subject"]
