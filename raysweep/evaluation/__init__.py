"""Evaluations of a milestone: excess loss, Fisher trace, linear probe and others."""

from raysweep.algorithms.lookup_table import LookupTable
from raysweep.evaluation.base import Arrays, Evaluation
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.models.subject import ModelSubject, Subject

__all__ = ["Arrays", "Evaluation", "LookupTable", "Metric", "ModelSubject", "Quantity", "Subject"]
