"""Evaluations: the measurements at a milestone, such as excess loss, Fisher trace and linear probe."""

from raysweep.algorithms.lookup_table import LookupTable
from raysweep.evaluation.base import Arrays, Evaluation
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.models.subject import ModelSubject, Subject

__all__ = ["Arrays", "Evaluation", "LookupTable", "Metric", "ModelSubject", "Quantity", "Subject"]
