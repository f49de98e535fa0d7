"""`raysweep bench exact`: sampling, exact conditionals, entropies and labels of the languages."""

from __future__ import annotations

from raysweep.bench.exact import causal_lm, hmm, pcfg, rates
from raysweep.bench.harness import Entry

ENTRIES = (
    Entry(
        key="pcfg-layered",
        work="PCFG, all exact conditionals: layered grammar, 2–16 words",
        build=pcfg.layered,
    ),
    Entry(
        key="pcfg-dense",
        work="PCFG, all exact conditionals: dense grammar of 50 symbols, 32 words",
        build=pcfg.dense,
    ),
    Entry(key="pcfg-sampling", work="PCFG, sampling: layered grammar", build=pcfg.sampling),
    Entry(
        key="hmm-dense",
        work="HMM, all exact conditionals: 100 states, 200 words, length 16, one block",
        build=hmm.dense,
    ),
    Entry(
        key="hmm-blocks",
        work="HMM, all exact conditionals: the same in ten blocks",
        build=hmm.blocks,
    ),
    Entry(
        key="causal-lm",
        work="causal LM, exact conditionals: the shape of OPT-125M, random weights, length 24",
        build=causal_lm.opt,
    ),
    Entry(key="pcfg-entropy", work="PCFG, entropy: layered grammar", build=rates.entropy),
    Entry(key="pcfg-labels", work="PCFG, labels A, B and C: layered grammar", build=rates.labels),
    Entry(
        key="pcfg-million",
        work="PCFG, 10⁶ sentences: sampling, all conditionals, entropy and statistics",
        build=rates.million,
    ),
)
