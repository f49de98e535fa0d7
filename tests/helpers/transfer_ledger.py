"""A sweep of probes, fine-tuning and quantisation with made-up measurements in a real ledger.

Arrays of shards are made up, as `measure` would give them; metrics and notes come from `combine` and `notes`
of the evaluations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysweep.evaluation.base import Arrays, Evaluation
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.finetune import FinetuneConfig
from raysweep.evaluation.metric import Metric
from raysweep.evaluation.notes import text_arrays
from raysweep.evaluation.probe import ProbeConfig
from raysweep.evaluation.quantize import QuantizeConfig
from raysweep.evaluation.trace import TRACE
from raysweep.sweep import RunSpec, Sweep, load_sweep

FILE = """\
name: transfer
language: {kind: pcfg, structure: layered, seed: 0, roots: 2, layers: 3, symbols: 2, rules: 3, stop: 0.2,
  words: 8, vocabulary: 8}
model: {kind: encoder, shape: 32/1/2/128}
algorithm: {kind: adamw, lr: 1e-3}
pretrain: {steps: 3200, batch_size: 8, milestones: [200, 800, 3200]}
evaluate:
  excess_loss: {sentences: 64}
  trace: {inputs: 64}
  probe: {seeds: 3, train: [128, 512, 2048], test: 4096}
  finetune: {seeds: 3, train: 512, test: 512, warmup_steps: 2}
  quantize: {sentences: 64, noise: [0.01, 0.1]}
axes:
  model.shape: [32/1/2/128, 64/1/2/256]
  seed: [0, 1]
include:
  - algorithm: {kind: lookup_table}
"""

#: Best possible accuracy and share of the most frequent label, by task.
KNOWN = {"A": (0.91, 0.30), "B": (0.97, 0.42), "C": (1.0, 0.55)}


def transfer_sweep(folder: Path, *overrides: str, diverged: bool = False) -> Sweep:
    """Return a sweep with all its measurements; `diverged`: one cell of one checkpoint, all of another."""
    (folder / "transfer.yaml").write_text(FILE)
    sweep = load_sweep(folder / "transfer.yaml", overrides, storage=folder / "results")
    for place, spec in enumerate(sweep.runs):
        for step in spec.milestones:
            lost = {200: 3, 3200: 1}.get(step, 0) if diverged and spec.seed == 1 else 0
            _record(sweep, spec, step, np.random.default_rng([place, step]), lost)
    return sweep


def _record(sweep: Sweep, spec: RunSpec, step: int, generator: np.random.Generator, lost: int) -> None:
    run = sweep.ledger().run(spec)
    learned = 1 - 0.8 * np.exp(-step / 1500) - 0.05 * (spec.seed % 2)
    if spec.trains and "64/" in spec.model.label:
        learned += 0.08
    for evaluation in spec.evaluations.values():
        notes: dict[str, str] = {}
        match evaluation:
            case ProbeConfig():
                metrics = evaluation.combine([_probed(evaluation, learned, generator)])
            case FinetuneConfig():
                cells = _tuned(evaluation, learned, generator, lost)
                metrics, notes = evaluation.combine(cells), evaluation.notes(cells)
            case QuantizeConfig():
                metrics = evaluation.combine([_rounded(evaluation, learned, generator)])
            case _:
                metrics = _plain(evaluation, learned)
        run.record_evaluation(step, evaluation, metrics, seconds=1.0, notes=notes)


def _plain(evaluation: Evaluation, learned: float) -> list[Metric]:
    if evaluation.kind == "trace":
        return [TRACE.number(60 - 40 * learned, standard_error=0.5, n=64)]
    return [EXCESS_LOSS.number(0.5 * (1.1 - learned), standard_error=0.002, n=64)]


def _probed(evaluation: ProbeConfig, learned: float, generator: np.random.Generator) -> Arrays:
    sizes, arrays = evaluation.sizes, {}
    for task, (best, majority) in KNOWN.items():
        rise = 1 - np.exp(-np.log(sizes)[:, None] * (0.1 + 0.25 * learned))
        accuracy = majority + (best - majority) * rise + generator.normal(0, 0.006, (len(sizes), 3))
        made = {
            "accuracy": accuracy[None],
            "error": np.full((1, len(sizes)), 0.005),
            "gap": np.full((1, len(sizes), 3), 0.01),
            "l2": np.ones((1, len(sizes), 3)),
            "majority": np.array([majority]),
            "sizes": np.array(sizes),
            "test": np.array([4096]),
            "best": np.array([best, 0.002]),
        }
        arrays |= {f"{name}.{task}": array for name, array in made.items()}
    return arrays


def _tuned(
    evaluation: FinetuneConfig, learned: float, generator: np.random.Generator, lost: int
) -> list[Arrays]:
    cells = []
    for task in evaluation.tasks or ():
        best, majority = KNOWN[task]
        for seed in range(evaluation.seeds):
            cell: Arrays = {"examples": np.array([512, 512]), "guess": np.array([majority])}
            cell |= {"classes": np.array([2])} | ({} if seed else {"best": np.array([best, 0.002])})
            if task == "A" and seed < lost:
                cell["diverged"] = np.array([3 + seed])
            else:
                score = best - (best - majority) * 0.35 * (1.1 - learned) + generator.normal(0, 0.01)
                rise = 0.05 + 0.2 * (1 - learned) + abs(generator.normal(0, 0.01))
                numbers = {"score.accuracy": score, "train_loss": 0.3, "rise": rise}
                numbers |= {"after": 0.5 * (1.1 - learned) + rise, "excess_loss": 0.5 * (1.1 - learned)}
                cell |= {name: np.array([value]) for name, value in numbers.items()}
                cell |= {"answers": np.arange(512) % 2, "labels": np.zeros(512)}
            cells.append(cell | text_arrays({"task": task, "metric": "accuracy"}))
    return cells


def _rounded(evaluation: QuantizeConfig, learned: float, generator: np.random.Generator) -> Arrays:
    plain = np.abs(0.5 * (1.1 - learned) + generator.normal(0, 0.01, 64))
    sizes = {"int8": 2e-4, "int4": 0.03, "noise0.01": -1e-5, "noise0.1": 0.2}
    arrays = {
        name: plain + size * (1.5 - learned) + generator.normal(0, 0.1 * abs(size), 64)
        for name, size in sizes.items()
    }
    for name in ("noise0.01", "noise0.1"):
        arrays[name] = arrays[name][:, None] + generator.normal(0, 1e-6, (64, evaluation.draws))
    return arrays | {"excess_loss": plain, "masked": np.ones(64)}
