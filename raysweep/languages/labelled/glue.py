"""The tasks of GLUE: their columns, classes, scores and reported splits.

Source: Wang, Singh, Michael, Hill, Levy and Bowman, "GLUE: a multi-task benchmark and analysis platform for
natural language understanding", ICLR 2019, in the form of the data set `nyu-mll/glue` of the Hugging Face
hub.  The labels of GLUE's own test sets are not public, so results are reported on the validation split, as
most papers do.  Of MNLI's two validation splits, `validation_matched` is the default here.  The diagnostic
set `ax` has no training rows and no public labels, and is no task here.

>>> GLUE["qnli"].text, GLUE["qnli"].classes
(('question', 'sentence'), ('entailment', 'not_entailment'))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysweep.languages.base import TaskMetric

HUB = "nyu-mll/glue"

GlueName = Literal["cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"]


@dataclass(frozen=True)
class GlueTask:
    """One task: its text columns, its classes by number (none: a regression), its scores."""

    text: tuple[str, ...]
    classes: tuple[str, ...]
    metrics: tuple[TaskMetric, ...] = ("accuracy",)
    reported: str = "validation"


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE: dict[GlueName, GlueTask] = {
    "cola": GlueTask(("sentence",), ("unacceptable", "acceptable"), ("matthews",)),
    "sst2": GlueTask(("sentence",), ("negative", "positive")),
    "mrpc": GlueTask(_PAIR, ("not_equivalent", "equivalent"), ("accuracy", "f1")),
    "qqp": GlueTask(("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1")),
    "stsb": GlueTask(_PAIR, (), ("pearson", "spearman")),
    "mnli": GlueTask(
        ("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), reported="validation_matched"
    ),
    "qnli": GlueTask(("question", "sentence"), _ENTAILMENT),
    "rte": GlueTask(_PAIR, _ENTAILMENT),
    "wnli": GlueTask(_PAIR, ("not_entailment", "entailment")),
}
