"""The linear probe beside a loop over seeds and tasks, and beside scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raysweep.bench.downstream.memory import memory
from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared, shares
from raysweep.bench.peers import peer as import_peer
from raysweep.bench.peers.probing import answers, projected, scikit_learn, standardised, trained
from raysweep.bench.products import share_of_gemm
from raysweep.bench.record import Figure, Peak, Timing
from raysweep.bench.train.work import Work, train
from raysweep.downstream import probe
from raysweep.downstream.probe import AdamW, Chunk, Convex, ProbeResult, linear_probe
from raysweep.downstream.tasks import Examples, task_groups
from raysweep.languages.base import Language
from raysweep.languages.splits import Split
from raysweep.models.subject import ModelSubject

#: Sentences whose features are made at once; their statistics standardise.
CHUNK = 4096

#: Largest share of test sentences on which heads of the same steps may disagree: sums are rounded otherwise.
DISAGREEMENT = 0.01
#: Largest difference of accuracies where heads are found in other ways.
ACCURACY = 0.005


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a case."""

    steps: int
    labels: tuple[int, ...]
    test: int
    seeds: int
    width: int
    epochs: int


FULL = Sizes(steps=300, labels=(128, 512, 2048, 8192), test=8192, seeds=5, width=512, epochs=100)
QUICK = Sizes(steps=3, labels=(128, 512), test=1024, seeds=2, width=64, epochs=10)


class Data:
    """A model with a language and its tasks, and the examples of both splits."""

    def __init__(self, sizes: Sizes, quick: bool) -> None:
        self.sizes = sizes
        shape = "16/1/1/32" if quick else "64/1/2/256"
        work = Work(shape=shape, batch_size=64 if quick else 512, steps=sizes.steps, device="cpu")
        stepper = work.stepper(0.0)
        train(work, stepper)
        self.language: Language = work.language
        self.subject = ModelSubject(self.language, stepper.model)
        (self.group,) = task_groups(self.language)
        self.classes = {name: len(task.classes) for name, task in self.group.tasks.items()}
        self.examples: dict[Split, list[Examples]] = {
            "train": list(self.group.batches("train", max(sizes.labels), seed=0, size=CHUNK)),
            "test": list(self.group.batches("test", sizes.test, seed=0, size=CHUNK)),
        }

    def chunks(self, split: Split) -> Iterator[Chunk]:
        """Yield features and labels of a split."""
        for examples in self.examples[split]:
            yield Chunk(features=self.subject.features(examples.ids), labels=examples.labels)

    def features(self, split: Split) -> Tensor:
        """Return the features [n, F] of a split, from a pass of the model."""
        return torch.cat([self.subject.features(examples.ids) for examples in self.examples[split]])

    def labels(self, split: Split, task: str) -> Tensor:
        """Return the labels [n] of a task."""
        return torch.cat([examples.labels[task] for examples in self.examples[split]])

    def probe(self, solver: AdamW | Convex, labels: Sequence[int]) -> dict[str, ProbeResult]:
        """Return raysweep's results."""
        return linear_probe(
            [self.chunks("train")],
            self.chunks("test"),
            self.classes,
            sizes=labels,
            solver=solver,
            seeds=self.sizes.seeds,
            projection=self.sizes.width,
        )


def flops_of_steps(data: Data) -> float:
    """Return the operations of the products of all heads' steps: scores, and gradients by the weights.

    The features of a sentence are more than `width`; of fewer, raysweep's steps take fewer operations.
    """
    sizes = data.sizes
    rows = sizes.epochs * max(sizes.labels) * sizes.seeds * sum(data.classes.values())
    return 4.0 * rows * (sizes.width + 1)


#: Predictions [sizes, seeds, n] by task.
Predictions = Mapping[str, Tensor]


def against_the_loop(name: Literal["lbfgs", "adamw"], quick: bool) -> Case:
    """Return the case of one size of the training set, beside a loop over seeds and tasks."""
    sizes = QUICK if quick else FULL
    data = Data(sizes, quick)
    recipe = AdamW(epochs=sizes.epochs, steps=0)
    solver = Convex() if name == "lbfgs" else recipe
    labels = [max(sizes.labels)]
    heads = sizes.seeds * len(data.classes)

    def prepare() -> Prepared:
        def check() -> Difference:
            ours, theirs = data.probe(solver, labels), looped(data, recipe)
            return disagreement(ours, theirs) if name == "adamw" else shortfall(data, ours, theirs)

        return Prepared(check=check, contestant=Contestant(units=heads, work=partial(looped, data, recipe)))

    note = "nn.Linear and AdamW in torch, each head with its own pass over the sentences"
    if name == "lbfgs":
        note += "; raysweep must not be less accurate"
    loop = Peer(name="one seed and one task at a time", prepare=prepare, goal=8.0, note=note)
    ours = partial(data.probe, solver, labels)
    contestants: dict[str, Callable[[], object]] = {
        "raysweep": ours,
        "the loop": partial(looped, data, recipe),
    }

    def figures(timing: Timing | None, peak: Peak) -> Sequence[Figure]:
        found = list(memory(contestants, timing, peak))
        if name == "adamw":
            least = "share of the time in the least objective, for the gap"
            found += [
                share_of_gemm(flops_of_steps(data), ours, rounds=1),
                *shares({least: (probe, ["solve"])}, ours),
            ]
        return found

    return Case(
        unit="head",
        ours=Contestant(units=heads, work=ours),
        peers=[loop],
        rounds=3,
        figures=figures,
    )


def against_scikit_learn(quick: bool) -> Case:
    """Return the case of several sizes of the training set, beside scikit-learn one by one."""
    sizes = QUICK if quick else FULL
    data = Data(sizes, quick)
    heads = sizes.seeds * len(data.classes) * len(sizes.labels)

    def prepare() -> Prepared:
        import_peer("sklearn.linear_model")

        def check() -> Difference:
            return accuracy_difference(data, data.probe(Convex(), sizes.labels), fitted(data))

        return Prepared(check=check, contestant=Contestant(units=heads, work=partial(fitted, data)))

    one_by_one = Peer(
        name="scikit-learn's LogisticRegression, one by one",
        prepare=prepare,
        goal=3.0,
        note="with one pass over the sentences for all heads, as raysweep has",
    )
    ours = partial(data.probe, Convex(), sizes.labels)
    return Case(
        unit="head",
        ours=Contestant(units=heads, work=ours),
        peers=[one_by_one],
        rounds=3,
        figures=partial(memory, {"raysweep": ours, "scikit-learn": partial(fitted, data)}),
    )


def looped(data: Data, recipe: AdamW) -> Predictions:
    """Return predictions of heads that are trained one at a time, each with features of its own."""
    found: dict[str, list[Tensor]] = {task: [] for task in data.classes}
    for task, classes in data.classes.items():
        for of in range(data.sizes.seeds):
            train, test = standardised(data.features("train"), data.features("test"), CHUNK)
            x, held = (projected(part, data.sizes.width, seed=0, of=of) for part in (train, test))
            head = trained(x, data.labels("train", task), classes, recipe, seed=0, of=of)
            found[task].append(answers(head, held))
    return {task: torch.stack(rows)[None] for task, rows in found.items()}


def fitted(data: Data) -> Predictions:
    """Return predictions of scikit-learn's heads, one at a time, on features that all share."""
    train, test = standardised(data.features("train"), data.features("test"), CHUNK)
    sizes = list(data.sizes.labels)
    found: dict[str, list[np.ndarray]] = {task: [] for task in data.classes}
    for of in range(data.sizes.seeds):
        x, held = (projected(part, data.sizes.width, seed=0, of=of) for part in (train, test))
        for task in data.classes:
            found[task].append(np.stack(list(scikit_learn(x, data.labels("train", task), held, sizes))))
    return {task: torch.from_numpy(np.stack(rows, axis=1)) for task, rows in found.items()}


def disagreement(ours: Mapping[str, ProbeResult], theirs: Predictions) -> Difference:
    """Return the share of test sentences on which the heads of a task and a seed disagree, the largest."""
    shares = [
        (result.predicted[0] != theirs[task]).double().mean(dim=2).max().item()
        for task, result in ours.items()
    ]
    return Difference(
        quantity="share of test sentences that a head answers otherwise, the largest",
        value=max(shares),
        tolerance=DISAGREEMENT,
    )


def shortfall(data: Data, ours: Mapping[str, ProbeResult], theirs: Predictions) -> Difference:
    """Return by how much raysweep's mean accuracy on a task is below the peer's, the most."""
    return Difference(
        quantity="accuracy that raysweep lacks on a task, mean over seeds, the most",
        value=max(float(_gains(data, ours, theirs, task).neg().max()) for task in ours),
        tolerance=ACCURACY,
    )


def accuracy_difference(data: Data, ours: Mapping[str, ProbeResult], theirs: Predictions) -> Difference:
    """Return the largest difference of mean accuracies, over tasks and sizes of the training set."""
    return Difference(
        quantity="largest difference of accuracies, mean over seeds",
        value=max(float(_gains(data, ours, theirs, task).abs().max()) for task in ours),
        tolerance=ACCURACY,
    )


def _gains(data: Data, ours: Mapping[str, ProbeResult], theirs: Predictions, task: str) -> Tensor:
    """Return raysweep's accuracy less the peer's at each size [sizes], mean over seeds."""
    right = (theirs[task] == data.labels("test", task)).double().mean(dim=(1, 2))
    return ours[task].accuracy[0].mean(dim=1) - right
