"""`raysweep bench downstream`: transfer to downstream tasks beside other libraries.

Fine-tuning: all contestants start from the same weights and the same head, and train on the same sentences in
the same order, with the same dropout, AdamW, schedule and clipping.  A unit is a token: a word of a sentence.
Padding and the sentence-level token do not count.

Linear probes: all contestants have the same features and projections, for tasks A, B and C, with an encoder
that was trained for a few hundred steps.  A unit is a head: one seed of one task with one number of labels.
"""

from __future__ import annotations

from functools import partial

from raysweep.bench.downstream.finetuning import fine_tuning
from raysweep.bench.downstream.probing import against_scikit_learn, against_the_loop
from raysweep.bench.harness import Entry

_LANGUAGE = "sentences of a PCFG of the paper's shape, 2–16 words"

ENTRIES = (
    Entry(
        key="finetune-128",
        work=f"fine-tuning, 128/2/4/512, batches of 128: {_LANGUAGE}",
        build=partial(fine_tuning, "128/2/4/512", rounds=5, goal=2.0),
    ),
    Entry(
        key="finetune-64",
        work=f"fine-tuning, 64/1/2/256, batches of 128: {_LANGUAGE}",
        build=partial(fine_tuning, "64/1/2/256", rounds=7, goal=2.0),
    ),
    Entry(
        key="probe",
        work=f"linear probe by L-BFGS, 5 seeds × 3 tasks, 8192 labels, 64/1/2/256: {_LANGUAGE}",
        build=partial(against_the_loop, "lbfgs"),
    ),
    Entry(
        key="probe-adamw",
        work=f"linear probe by 100 epochs of AdamW, the rest as above: {_LANGUAGE}",
        build=partial(against_the_loop, "adamw"),
    ),
    Entry(
        key="probe-curve",
        work=f"linear probe by L-BFGS, 128, 512, 2048 and 8192 labels, the rest as above: {_LANGUAGE}",
        build=against_scikit_learn,
    ),
)
