"""The fields of a downstream task made of labelled texts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from raysweep.languages.base import TaskMetric
from raysweep.languages.labelled.glue import GLUE, HUB, GlueName
from raysweep.registry import Config


class DataTask(Config):
    """A task of labelled texts: one of GLUE's (`glue: sst2`), or any table with a column of labels.

    `source` is a data set of the Hugging Face hub, a local .parquet, .jsonl, .json or .csv file, or a local
    folder: one with a file `train.*` and a file `validation.*`, or one that `save_to_disk` of `datasets`
    wrote.  Local files of a GLUE task have the columns and labels of the hub's.
    """

    hub_or_path: ClassVar[frozenset[str]] = frozenset({"source"})

    #: A task of GLUE, which sets `text`, the classes, `metrics` and `test`.
    glue: GlueName | None = None
    #: A data set on the hub, a local table, or a folder; None: GLUE's data set on the hub.
    source: str | None = Field(default=None, min_length=1, validate_default=True)
    #: The name that evaluations call the task by; None: GLUE's.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]+$", validate_default=True)
    #: Configuration of a data set on the hub.
    subset: str | None = None
    #: Branch, tag or commit of a data set on the hub; None: `main`.
    revision: str | None = None
    #: The column of the text, or the two columns of a pair.
    text: str | tuple[str, str] | None = Field(default=None, validate_default=True)
    #: The column of the labels: class names, class numbers, or the numbers of a regression.
    label: str = "label"
    #: The labels are numbers.
    regression: bool = False
    #: Scores, the headline first; None: GLUE's, else accuracy, or Pearson's and Spearman's correlation.
    metrics: tuple[TaskMetric, ...] | None = Field(default=None, min_length=1)
    #: The split, or the file of a folder, that is learnt from.
    train: str = "train"
    #: The split, or the file of a folder, that results are reported on; None: GLUE's, else `validation`.
    test: str | None = None
    #: Share of the rows of `train` that results are reported on, where the source has no other split.
    held_out: float | None = Field(default=None, gt=0, lt=1, allow_inf_nan=False)
    #: Decides which rows are held out.
    seed: int = Field(default=0, ge=0)
    #: Tokens outside the vocabulary: left out, or hidden by the mask token; None: as the language says.
    outside: Literal["drop", "mask"] | None = None
    #: Leave out rows without text or label instead of refusing them.
    skip_empty: bool = False

    @field_validator("source")
    @classmethod
    def _source_is_there(cls, source: str | None, info: ValidationInfo) -> str | None:
        if source is None and info.data.get("glue") is None:
            raise ValueError("missing; name a data set of the hub or local files, or one of GLUE's with glue")
        return source

    @field_validator("name")
    @classmethod
    def _name_is_there(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is None and info.data.get("glue") is None:
            raise ValueError("missing; evaluations call the task by it")
        return name

    @field_validator("text")
    @classmethod
    def _text_is_there(
        cls, text: str | tuple[str, str] | None, info: ValidationInfo
    ) -> str | tuple[str, str] | None:
        if text is None and info.data.get("glue") is None:
            raise ValueError("missing; name the column of the text, or the two columns of a pair")
        return text

    @field_validator("regression")
    @classmethod
    def _regression_is_no_glue(cls, regression: bool, info: ValidationInfo) -> bool:
        if regression and info.data.get("glue") is not None:
            raise ValueError("belongs to a table of your own; glue says so of its tasks (stsb); remove it")
        return regression

    @field_validator("metrics")
    @classmethod
    def _metrics_fit(
        cls, metrics: tuple[TaskMetric, ...] | None, info: ValidationInfo
    ) -> tuple[TaskMetric, ...] | None:
        glue, numbers = info.data.get("glue"), {"pearson", "spearman"}
        regression = info.data.get("regression") or (glue is not None and not GLUE[glue].classes)
        for metric in metrics or ():
            if (metric in numbers) != regression:
                kind = "regression" if regression else "classification"
                raise ValueError(f"'{metric}' is no score of a {kind}; choose others")
        return metrics

    @field_validator("held_out")
    @classmethod
    def _held_out_replaces_a_split(cls, share: float | None, info: ValidationInfo) -> float | None:
        if share is not None and info.data.get("test") is not None:
            raise ValueError(
                f"{share} of the rows, but `test` names the rows to report on; remove one of the two"
            )
        return share

    @property
    def title(self) -> str:
        """The name that evaluations call the task by."""
        return self.name or str(self.glue)

    @property
    def place(self) -> str:
        """The source, GLUE's data set on the hub by default."""
        return self.source or HUB

    @property
    def columns(self) -> tuple[str, ...]:
        """The one or two columns of text."""
        if self.text is None:
            return GLUE[self.glue].text if self.glue is not None else ()
        return (self.text,) if isinstance(self.text, str) else self.text

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes where they are known before the rows are read, () for a regression."""
        if self.glue is not None:
            return GLUE[self.glue].classes
        return () if self.regression else None

    @property
    def scores(self) -> tuple[TaskMetric, ...]:
        """The scores, the headline first."""
        if self.metrics is not None:
            return self.metrics
        if self.glue is not None:
            return GLUE[self.glue].metrics
        return ("pearson", "spearman") if self.regression else ("accuracy",)

    @property
    def reported(self) -> str | None:
        """The split that results are reported on; None where it is a share of `train`."""
        if self.test is not None or self.held_out is not None:
            return self.test
        return GLUE[self.glue].reported if self.glue is not None else "validation"


def named_once(tasks: tuple[DataTask, ...]) -> tuple[DataTask, ...]:
    """Return the tasks; raises `ValueError` where two have one name."""
    names = [task.title for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two tasks are called '{name}'; give one of them another name")
    return tasks


#: The field `tasks` of a language's configuration.
DataTasks = Annotated[tuple[DataTask, ...], AfterValidator(named_once)]
