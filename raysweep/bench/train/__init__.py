"""`raysweep bench train`: pre-training beside Hugging Face's BertForMaskedLM.

All contestants train the same model from the same initial weights, on the same sentences with the same masked
words, with the same dropout and AdamW.  A unit is a token: a word of a sentence, masked or not.  Padding does
not count.
"""

from __future__ import annotations

from functools import partial

from raysweep.bench.harness import Entry
from raysweep.bench.train.cases import encoder

_LANGUAGE = "words of a PCFG of the paper's shape, 2–16 a sentence"

ENTRIES = (
    Entry(
        key="encoder-128",
        work=f"pre-training, 128/2/4/512, batches of 512: {_LANGUAGE}",
        build=partial(encoder, "128/2/4/512", "cpu", rounds=5, steps=16, bfloat16=2.5, float32=5.0),
    ),
    Entry(
        key="encoder-64",
        work=f"pre-training, 64/1/2/256, batches of 512: {_LANGUAGE}",
        build=partial(encoder, "64/1/2/256", "cpu", rounds=7, steps=16),
    ),
    Entry(
        key="encoder-128",
        work=f"pre-training, 128/2/4/512, batches of 4096: {_LANGUAGE}",
        build=partial(encoder, "128/2/4/512", "cuda", rounds=7, steps=64, bfloat16=6.0),
        device="cuda",
    ),
    Entry(
        key="encoder-512",
        work=f"pre-training, 512/8/8/2048, batches of 4096: {_LANGUAGE}",
        build=partial(encoder, "512/8/8/2048", "cuda", rounds=5, steps=32, bfloat16=3.0, peak=0.35),
        device="cuda",
    ),
    Entry(
        key="encoder-1024",
        work=f"pre-training, 1024/16/16/4096, batches of 4096: {_LANGUAGE}",
        build=partial(encoder, "1024/16/16/4096", "cuda", rounds=3, steps=16, bfloat16=2.0, peak=0.5),
        device="cuda",
    ),
)
