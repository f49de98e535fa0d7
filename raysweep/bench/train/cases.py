"""Pre-training of an encoder, beside BertForMaskedLM."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import cast

import torch

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.bench.harness import Case, Contestant, Device, Difference, Peer, Prepared, cheapest, seconds
from raysweep.bench.peers.bert import Bert, Inputs, Recipe, check_compiler
from raysweep.bench.products import products, rate_on_gpu, share_of_peak
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.bench.train.work import Work, by_length, losses, split, train, wait
from raysweep.models.batch import Batch
from raysweep.models.encoder import Encoder
from raysweep.models.flops import training_flops
from raysweep.models.precision import multiplies_bfloat16

DROPOUT = 0.1

#: Steps over which losses are compared.  The rate reaches that of training within them.
CHECKED_STEPS = 8
CHECKED = AdamWConfig(warmup_steps=CHECKED_STEPS)
#: Above this width the rate of the comparison falls as 1 / width.  At the full rate, without a long warm-up,
#: wide models do not train, and the losses of two diverging trainings differ by their rounding.
WIDE = 128

#: Largest difference of the losses of a step (nats), by the peer's precision.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-3}


def encoder(
    shape: str,
    device: Device,
    quick: bool,
    *,
    rounds: int,
    steps: int,
    bfloat16: float | None = None,
    float32: float | None = None,
    peak: float | None = None,
) -> Case:
    """Return a case with goals: `bfloat16` and `float32` for ratios, `peak` for the share of the peak.

    Peers in bfloat16 take part where the processor has instructions for it; elsewhere a step of theirs takes
    up to a hundred times as long.
    """
    if quick:
        work = Work(shape="32/2/2/64", batch_size=64, steps=3, device=device)
    else:
        # A GPU works while later sentences are drawn; only those of the first few steps are drawn before.
        batch_size = 512 if device == "cpu" else 4096
        work = Work(shape=shape, batch_size=batch_size, steps=steps, device=device)
    half = Recipe(precision=torch.bfloat16)
    drawn = "its batches are made in advance"
    sort = f"{drawn}, each from sentences of about one length out of all {work.steps} steps"
    grouped = _peer(
        work, "the same, sorted by length, fused AdamW", *ways(device), grouped=True, goal=2.0, note=sort
    )
    halves = []
    if _has_bfloat16(device):
        halves.append(_peer(work, "BertForMaskedLM, bfloat16", half, goal=bfloat16, note=drawn))
    peers = {
        "cpu": [
            _peer(
                work,
                "BertForMaskedLM, float32",
                Recipe(),
                goal=float32,
                note=f"{drawn}; its losses equal those of raysweep in float32, and raysweep is timed in the "
                "precision that it chooses",
            ),
            *halves,
            grouped,
        ],
        "cuda": [
            *halves,
            _peer(work, "the same, compiled", replace(half, compiled=True), goal=bfloat16, note=drawn),
            grouped,
        ],
    }
    stepper = work.stepper(DROPOUT)
    return Case(
        unit="token",
        ours=Contestant(units=work.tokens, work=partial(train, work, stepper)),
        peers=peers[device],
        rounds=rounds,
        clock="cpu" if device == "cpu" else "wall",
        figures=partial(_figures, work, peak),
    )


def loss_difference(work: Work, given: Sequence[Batch], recipe: Recipe) -> Difference:
    """Train both on the same batches, from the same weights, without dropout; compare all losses.

    A peer in float32 is compared with raysweep in float32, because bfloat16 would hide differences.  A peer
    in bfloat16 is compared with raysweep in the precision that it chooses, in which it is also timed.
    """
    model = work.model(dropout=0.0)
    checked = CHECKED.model_copy(update={"lr": CHECKED.lr * min(1.0, WIDE / model.width)})
    exact = recipe.precision == torch.float32
    work = replace(work, algorithm=checked, precision="float32" if exact else work.precision)
    bert = Bert(model, checked, recipe, steps=work.steps, device=work.device)
    inputs = [Inputs.of(batch, work.language.pad_id) for batch in given]
    apart = bert.train(inputs).double().cpu() - losses(work, given)
    return Difference(
        quantity=f"largest difference of the losses of {len(given)} steps (nats)",
        value=apart.abs().max().item(),
        tolerance=TOLERANCE[recipe.precision],
    )


def ways(device: Device) -> list[Recipe]:
    """Return the recipes among which the strongest is sought.

    torch.compile is not among them: on a CPU it takes minutes, and its steps take a third longer.
    """
    low = (torch.bfloat16,) if _has_bfloat16(device) else ()
    precisions = (torch.float32, *low) if device == "cpu" else low
    attentions = ("eager", "sdpa")
    return [
        Recipe(precision=precision, attention=attention, fused=True)
        for precision, attention in product(precisions, attentions)
    ]


def _has_bfloat16(device: Device) -> bool:
    return device == "cuda" or multiplies_bfloat16(torch.device("cpu"))


def _peer(
    work: Work, name: str, *recipes: Recipe, grouped: bool = False, goal: float | None = None, note: str
) -> Peer:
    """Return the peer that trains by the recipe that is the fastest here."""

    def prepare() -> Prepared:
        if any(recipe.compiled for recipe in recipes):
            check_compiler(work.device)
        given = list(work.batches())
        few = given[:CHECKED_STEPS]
        if grouped:
            given, few = by_length(given), by_length(few)
        inputs = [Inputs.of(batch, work.language.pad_id) for batch in given]

        def trained(recipe: Recipe) -> Callable[[], None]:
            bert = Bert(work.model(DROPOUT), work.algorithm, recipe, steps=work.steps, device=work.device)

            def run() -> None:
                bert.train(inputs)
                wait(work.device)

            return run

        ready = {recipe: trained(recipe) for recipe in recipes}
        recipe, tried = recipes[0], None
        if len(recipes) > 1:
            clock = time.process_time if work.device == "cpu" else time.perf_counter
            recipe = cheapest(recipes, lambda recipe: seconds(ready[recipe], clock))
            tried = (
                f"the fastest of {len(recipes)} ways: {_name(recipe.precision)}, attention {recipe.attention}"
            )
        run = ready[recipe]

        def check() -> Difference:
            found = loss_difference(work, few, recipe)
            if tried is None:
                # This call compiles and caches, so that the timed ones do not.
                run()
            return found

        return Prepared(check=check, contestant=Contestant(units=work.tokens, work=run), note=tried)

    return Peer(name=name, prepare=prepare, goal=goal, note=note)


def _figures(work: Work, goal: float | None, timing: Timing | None, peak: Peak) -> list[Figure]:
    """Return the share of the peak that raysweep reaches, and the times of the parts of its steps.

    On a processor shares are measured in turns with the peak, on a GPU by the peak of the record.
    """
    if timing is None or peak.gemm_bfloat16_gflops is None:
        raise ValueError("shares of the peak need a timing and the peak in bfloat16")
    flops = training_flops(work.model(DROPOUT), work.lengths, torch.ones_like(work.lengths))
    if flops is None:
        raise ValueError("the operations of this model are not known")
    gflops = 1e-9 * flops / work.tokens / timing.seconds.median
    wanted = None if goal is None else Goal(sense="at least", value=goal)
    stepper = work.stepper(DROPOUT)
    parts = split(work, stepper)
    run = partial(train, work, stepper)
    peaks = {torch.float32: peak.gemm_float32_gflops, torch.bfloat16: peak.gemm_bfloat16_gflops}

    def of_peak(dtype: torch.dtype) -> Figure:
        on_cpu = work.device == "cpu"
        return Figure(
            name=f"share of the peak in {_name(dtype)}",
            unit="",
            value=share_of_peak(flops, run, dtype) if on_cpu else gflops / peaks[dtype],
            goal=wanted if dtype == torch.bfloat16 else None,
        )

    dtypes = list(peaks) if _has_bfloat16(work.device) else [torch.float32]
    figures = [of_peak(dtype) for dtype in dtypes]
    figures += [Figure(name=f"{part}, a step", unit="ms", value=1e3 * taken) for part, taken in parts.items()]
    if work.device == "cpu":
        share, by_peak = products(run, stepper.dtype)
    else:
        # Plain steps: the kernels of a recorded one belong to no operation.
        stepper.mark = lambda part: None
        rate = 1e-9 * rate_on_gpu(run)
        share, by_peak = gflops / rate, rate / peaks[stepper.dtype]
    figures += [
        Figure(name="share of a step in matrix products", unit="", value=share),
        Figure(name=f"rate of these products by the peak in {_name(stepper.dtype)}", unit="", value=by_peak),
    ]
    if work.device == "cuda":
        moved = 1e-9 * other_bytes(cast(Encoder, stepper.model), work.tokens, len(work.lengths), work.steps)
        figures.append(
            Figure(
                name="time of copying what all else reads and writes, by that of all",
                unit="",
                value=moved / peak.copy_gbytes / work.tokens / timing.seconds.median,
            )
        )
    return figures


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def other_bytes(model: Encoder, tokens: int, masked: int, steps: int) -> int:
    """Return the least bytes that training on a GPU moves outside products (`raysweep.models.gpu`).

    With D the width and F the intermediate size, numbers between products being bfloat16 and residual streams
    and sums float32, a word takes

    8 D + 14 D              attention, forward and backward, in each layer
    24 D + 32 D + 10 F      both residual sums and norms, and the activation, in each layer but the last

    A masked word takes the second line in the last layer.  A weight takes 34 bytes a step: AdamW reads four
    numbers and writes three, and a copy in bfloat16 is made.
    """
    D, F, layers = model.width, model.shape.intermediate, model.shape.layers
    behind = 56 * D + 10 * F
    words = layers * 22 * D + (layers - 1) * behind
    weights = sum(parameter.numel() for parameter in model.parameters())
    return tokens * words + masked * behind + 34 * weights * steps
