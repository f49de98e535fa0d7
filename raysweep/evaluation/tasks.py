"""The base of evaluations that measure transfer to downstream tasks."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, field_validator

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.downstream.tasks import TaskGroup, task_groups, task_names
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language
from raysweep.languages.splits import Split
from raysweep.registry import suggest

#: Examples of a language's own task where no number is given: as many as in the paper.
EXAMPLES = 100_000


def _as_name(value: Any) -> Any:
    """Return a whole number as a name: tasks of hidden Markov models are called "6", "10"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class TaskEvaluation(Evaluation):
    """Base of evaluations of `tasks`: the language's own ones and those of data sets, all when None."""

    #: Tasks of the language, by name; None: all.
    tasks: tuple[Annotated[str, BeforeValidator(_as_name, json_schema_input_type=str | int)], ...] | None = (
        None
    )
    #: Name and sha256 of each task that comes from a data set; filled in from the language.
    data: tuple[tuple[str, str], ...] = ()

    @field_validator("tasks")
    @classmethod
    def _tasks_are_named_once(cls, tasks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if tasks is not None and not tasks:
            raise ValueError("names no task; leave it out for all tasks")
        if tasks is not None and len(set(tasks)) != len(tasks):
            raise ValueError(f"a task is named twice in {list(tasks)}")
        return tasks

    def content(self) -> dict[str, Any]:
        content = super().content()
        if not self.data:
            del content["data"]
        return content

    def fitted(self, language: Language) -> Self:
        """Return the evaluation with the fingerprints of its tasks' data."""
        data = tuple((name, language.data_tasks[name].fingerprint) for name in self.data_tasks(language))
        return self.model_copy(update={"data": data})

    def data_tasks(self, language: Language) -> list[str]:
        """Return the names of the evaluation's tasks that come from data sets."""
        known = list(language.data_tasks)
        return known if self.tasks is None else [name for name in self.tasks if name in known]

    def groups(self, language: Language) -> list[TaskGroup]:
        """Return the groups of the evaluation's tasks; raises `DataError` for an unknown task."""
        return task_groups(language, self.tasks)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        known = task_names(language)
        if not known:
            return [("tasks", f"{language.no_tasks}; leave the {self.kind} out")]
        return [
            (
                f"tasks.{k}",
                f"unknown task '{task}'{suggest(task, known)}; the language has {', '.join(known)}",
            )
            for k, task in enumerate(self.tasks or ())
            if task not in known
        ]

    def untrained_problems(self, algorithm: AlgorithmConfig, language: Language) -> list[tuple[str, str]]:
        if algorithm.gives_parameters:
            return []
        return [
            (
                "tasks",
                f"'{algorithm.kind}' answers with exact conditionals, and the texts of task '{name}' are no "
                "sentences of the language, so there are none; name other tasks, or leave that algorithm out",
            )
            for name in self.data_tasks(language)
        ]

    def number(self, group: TaskGroup, split: Split, n: int | None) -> int | None:
        """Return how many examples of a group `n` asks for; None where rows are not counted yet."""
        if n is not None:
            return n
        return EXAMPLES if group.data is None else group.size(split)

    def shortage(self, language: Language, field: str, split: Split, n: int) -> list[tuple[str, str]]:
        """Return (field, message) for every task that has fewer than `n` examples of a split.

        Sizes that are known only after the data were prepared count as enough before, unless the rows are
        fewer already.
        """
        return [
            (
                field,
                f"{n} examples are asked for, and task '{name}' has no more than {most} of '{split}'; ask "
                "for fewer, or add rows",
            )
            for group in self.groups(language)
            if (most := group.most(split)) is not None and most < n
            for name in group.names
        ]
