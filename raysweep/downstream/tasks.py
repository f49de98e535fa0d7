"""The examples of downstream tasks, whatever their language: sentences with labels, in two splits.

A language's own tasks label its sentences: these are drawn by counter, `train` and `test` share no sentence
(`raysweep.languages.splits`), and all of these tasks share their sentences.  The tasks of data sets have
rows: `train` takes them in an order keyed by the seed, so that n examples are among any larger number of
them, and `test` has the rows that results are reported on.  Settings are chosen on a share of the training
examples (`raysweep.languages.splits.in_validation`), never on `test`.

>>> from raysweep.languages.hmm import HMM
>>> language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4))
>>> (group,) = task_groups(language)
>>> [examples.ids.shape[0] for examples in group.batches("train", 5, seed=0, size=3)]
[3, 2]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.base import LabelledData, Language, Task
from raysweep.languages.permutation import permuted
from raysweep.languages.splits import Split, draw_split
from raysweep.registry import suggest


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Sentences `ids` int64 [n, T], padded, and their labels [n] by task.

    Labels are int64 classes, or float32 numbers where the task is a regression.
    """

    ids: Tensor
    labels: Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class TaskGroup:
    """Tasks that share their sentences: those of a language itself, or the one of a data set."""

    language: Language
    names: tuple[str, ...]
    #: Rows of the group's only task; None for the language's own tasks.
    data: LabelledData | None = None

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name; prepares those of data sets, because rows may name the classes."""
        if self.data is not None:
            return {self.names[0]: self.data.task}
        return {name: self.language.tasks[name] for name in self.names}

    def size(self, split: Split) -> int | None:
        """Return the number of examples of a split; None where it has no end, or is not known yet."""
        return None if self.data is None else self.data.size(split)

    def most(self, split: Split) -> int | None:
        """Return the largest number that `size` can be; None where nothing bounds it, or it is not known."""
        return None if self.data is None else self.data.most(split)

    def examples(self, split: Split, n: int, *, seed: int, start: int = 0) -> Examples:
        """Return examples `start .. start+n-1` of a split; they do not depend on how they are sliced.

        Raises `DataError` where the split has fewer.
        """
        if self.data is None:
            sample = draw_split(self.language, split, n, seed=seed, start=start)
            return Examples(
                ids=sample.ids, labels={name: self.language.labels(name, sample) for name in self.names}
            )
        (name,) = self.names
        self.data.prepare()
        size = self.data.size(split) or 0
        if start + n > size:
            raise DataError(
                f"task '{name}': {start + n} {split} examples are asked for, of {size}; ask for fewer"
            )
        rows = torch.arange(start, start + n)
        rows = permuted(rows, size, seed=seed, purpose=f"task {split}", epoch=torch.zeros_like(rows))
        ids, labels = self.data.take(split, rows)
        return Examples(ids=ids, labels={name: labels})

    def batches(self, split: Split, n: int, *, seed: int, size: int = 4096) -> Iterator[Examples]:
        """Yield the first `n` examples of a split, `size` at a time.  Raises `DataError` as `examples`."""
        for start in range(0, n, size):
            yield self.examples(split, min(size, n - start), seed=seed, start=start)


def task_names(language: Language) -> list[str]:
    """Return the names of all tasks: the language's own, then those of data sets."""
    return [*language.tasks, *language.data_tasks]


def task_groups(language: Language, names: Iterable[str] | None = None) -> list[TaskGroup]:
    """Return the groups of some tasks, all when None.  Raises `DataError` for an unknown task."""
    known = task_names(language)
    wanted = known if names is None else list(names)
    for name in wanted:
        if name not in known:
            raise DataError(f"no task '{name}'{suggest(name, known)}; the language has {', '.join(known)}")
    own = tuple(name for name in wanted if name in language.tasks)
    groups = [TaskGroup(language=language, names=own)] if own else []
    return groups + [
        TaskGroup(language=language, names=(name,), data=language.data_tasks[name])
        for name in wanted
        if name not in own
    ]
