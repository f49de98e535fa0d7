"""Exact conditionals of a causal LM, beside a program that reads every candidate sentence from its start."""

from __future__ import annotations

from functools import partial

import torch

from raysweep.bench.exact.distance import total_variation
from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared
from raysweep.languages.causal_lm import CausalLM

#: Kept tokens.  The paper has 2000; every token takes the same work.
KEPT = 64


def opt(quick: bool) -> Case:
    """Return the case of a model with OPT-125M's shape and random weights; nothing is downloaded.

    A unit is one masked position of a sentence.  Positions are spread evenly over the sentence, because later
    positions share more of the work.
    """
    language, model = shape_of_opt(quick)
    T = language.max_length
    positions = ((torch.arange(4) + 0.5) / 4 * T).long()
    ids = torch.randint(len(language.kept), (4, T), generator=torch.Generator().manual_seed(0))
    truth = language.conditionals_at(ids, positions).exp()

    def reforward() -> Prepared:
        from raysweep.bench.peers import reforward

        work = partial(reforward.conditionals_at, model, language.kept, language.bos, ids, positions)

        def check() -> Difference:
            return total_variation([(work().exp(), truth)], 1e-4)

        return Prepared(check=check, contestant=Contestant(units=len(ids), work=work))

    return Case(
        unit="position",
        ours=Contestant(units=len(ids), work=partial(language.conditionals_at, ids, positions)),
        peers=[
            Peer(
                name="transformers, every candidate from its beginning",
                goal=2.2,
                prepare=reforward,
                note=f"float32, full head; {len(language.kept)} kept tokens",
            )
        ],
        rounds=3,
    )


def shape_of_opt(quick: bool) -> tuple[CausalLM, torch.nn.Module]:
    """Make the language and its model; `quick` has a far smaller shape."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    from raysweep.languages.causal_lm.loading import Source

    # The defaults are the shape of OPT-125M.
    config = OPTConfig()
    if quick:
        config = OPTConfig(
            vocab_size=512, hidden_size=64, ffn_dim=128, num_attention_heads=2, num_hidden_layers=2
        )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = OPTForCausalLM(config).eval().requires_grad_(False)
    vocabulary = {f"t{k}": k for k in range(config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t3")))
    source = Source(name="the shape of OPT-125M", model=model, tokenizer=tokenizer)
    kept = torch.arange(4, 4 + KEPT)
    return CausalLM(source, kept=kept, bos=2, length=8 if quick else 24), model
