"""A causal language model as a language: sentences of `length` words drawn from it, left to right.

    Pr(x) = prod_{s=1..T} p(x_s | bos, x_<s)

with p the model's softmax over its K kept tokens (Liu, Xie, Li and Ma, "Same Pre-training Loss, Better
Downstream", ICML 2023, appendix A.1: OPT-125M, 2000 tokens, 24 words).  The conditional of a masked position
weighs every kept token by the whole sentence that it makes:

    Pr(x_t = c | x_-t)  is proportional to  prod_{s>=t} p(x_s | bos, x_<s)  with x_t = c

which takes K (T - t) token passes of the model, t counted from 1.  Stopping a product early saves almost
nothing, because the only bound on its remaining factors is 1.  The words before t are read once.

The weights define the language.  Arithmetic is float32 unless said otherwise, sums over a sentence are
float64.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages.base import LabelledData, Language, Sample, Task, certain_length, sentence_numbers
from raysweep.languages.causal_lm.config import CausalLMConfig
from raysweep.languages.causal_lm.loading import Source
from raysweep.languages.causal_lm.network import Network
from raysweep.languages.causal_lm.sampling import Sampler
from raysweep.languages.checks import check_conditionals, check_sentences, decoded
from raysweep.languages.labelled.config import DataTask
from raysweep.languages.labelled.sentences import OUTSIDE, Encoding
from raysweep.languages.labelled.task import TextTask
from raysweep.seeding import uniforms

_log = logging.getLogger(__name__)

#: Numbers in the hidden states of one pass [rows, D]: 512 rows of OPT-125M, whose work then stays near the
#: caches of a CPU core; a GPU is filled by many more.
_PASS_ELEMENTS = {"cpu": 512 * 768}
_PASS_ELEMENTS_GPU = 65536 * 768
_LEAST_ROWS = 64


class CausalLM(Language):
    """A causal LM restricted to the tokens `kept` [K]; see the module's text for the equations.

    Word w is the model's token `kept[w]`, with the text `words[w]`.  All sentences have `length` words.
    Sentences are drawn on the CPU unless `to` says otherwise; other methods work where their ids are, the
    model being copied there on first use.
    """

    fixed_length: ClassVar[bool] = True
    most_hidden: ClassVar[int | None] = 1
    stores_conditionals: ClassVar[bool] = True
    stores_sentences: ClassVar[bool] = True
    drawn_at_once: ClassVar[int] = 1024
    no_tasks: ClassVar[str] = "the language has no downstream tasks: language.tasks names no labelled texts"

    def __init__(
        self, source: Source, *, kept: Tensor, bos: int, length: int, tasks: Sequence[DataTask] = ()
    ) -> None:
        self.kept, self.bos, self.max_length = kept, bos, length
        self.length_probabilities = certain_length(length)
        self.vocabulary_size = len(kept)
        self.words: tuple[str, ...] = tuple(source.tokenizer.batch_decode(kept[:, None].tolist()))
        self._source = source
        self._device = torch.device("cpu")
        network = Network(source, kept)
        self.notes = tuple(f"{source.name} is read in a slower way: {reason}" for reason in network.slower)
        for note in self.notes:
            _log.warning(note)
        self._networks = {(self._device, torch.float32): network}
        self._samplers: dict[torch.device, Sampler] = {}
        self._data_tasks = {
            task.title: TextTask(
                task,
                length=length,
                pad_id=self.pad_id,
                identity={"tokenizer": source.tokenizer_digest, "kept": kept.tolist()},
                encoding=self._encoding,
            )
            for task in tasks
        }

    @classmethod
    def load(cls, model: str = "facebook/opt-125m", **fields: Any) -> CausalLM:
        """Load a model by hub name or folder; `fields` are those of `CausalLMConfig`.

        Raises `ConfigError` for a field, `DataError` for a model that cannot be used.
        """
        return decoded(CausalLMConfig, {"model": str(model), **fields}).build()

    @property
    def tasks(self) -> Mapping[str, Task]:
        """No tasks: the sentences of the model have no labels."""
        return {}

    @property
    def data_tasks(self) -> Mapping[str, LabelledData]:
        """The tasks of labelled texts that the configuration names.

        The source does not say how GLUE's texts became sentences of 2000 tokens.  Here, tokens that are not
        kept are left out (`outside: drop`) or masked (`outside: mask`), and the rest is cut to `length`.
        """
        return self._data_tasks

    def _encoding(self) -> Encoding:
        tokenizer = self._source.tokenizer
        word = np.full(1 + max(tokenizer.get_vocab().values()), OUTSIDE)
        word[self.kept.numpy()] = np.arange(self.vocabulary_size)
        return Encoding(
            encode=lambda texts: [
                word[np.array(ids, dtype=np.int64)]
                for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]
            ],
            outside="drop",
            unknown=None,
            mask_id=self.mask_id,
            separator=self.cls_id,
            closed=False,
            length=self.max_length,
        )

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Raise `DataError`: there are no tasks."""
        raise DataError(f"no task '{task}'; this language has none")

    def text(self, ids: Tensor) -> str:
        """Return a sentence [T] as the model's tokenizer writes it."""
        # All tokens at once, because a letter may be several tokens that decode only together.
        words = ids[ids != self.pad_id].cpu()
        text: str = self._source.tokenizer.decode(self.kept[words].tolist())
        return text

    def content(self) -> bytes:
        """Return architecture and weights (their sha256), the kept tokens, bos and the length as bytes."""
        return self._source.digest + repr((self.kept.tolist(), self.bos, self.max_length)).encode()

    def to(self, device: str | torch.device) -> Self:
        """Draw sentences on `device` from now on; returns self.

        The sentences are the same (`raysweep.languages.causal_lm.sampling` says what is guaranteed).  The
        device holds the model twice, in float32 and float64: 1.5 GB for OPT-125M.
        """
        self._device = torch.device(device)
        return self

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        """Draw sentences; there are no latents.

        Cost: T token passes a sentence, and a few in float64.
        """
        return Sample(ids=self.sample_at(sentence_numbers(n, start), seed=seed))

    def sample_at(self, numbers: Tensor, *, seed: int) -> Tensor:
        # Keys are of the CPU, where Philox is as exact and nobody waits for it.
        u = uniforms(seed, "causal_lm", numbers.cpu(), self.max_length)
        with torch.no_grad():
            words: Tensor = self._sampler().draw(u.to(self._device))
        return words.cpu()

    def _sampler(self) -> Sampler:
        """Return the sampler of the device; the first call takes some seconds."""
        network = self._network(self._device, torch.float32)
        key = network.kept.device
        if key not in self._samplers:
            exact = self._network(self._device, torch.float64)
            self._samplers[key] = Sampler(network, exact, self.bos, self.max_length)
        return self._samplers[key]

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, computed in float64; -inf for sentences of another length."""
        lengths = check_sentences(self, ids)
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        network = self._network(ids.device, torch.float64)
        size = max(1, self._rows(ids.device) // self.max_length)
        right = (lengths == self.max_length).nonzero()[:, 0]
        for first in range(0, len(right), size):
            rows = right[first : first + size]
            words = ids[rows, : self.max_length]
            with torch.no_grad():
                logits = network.all_logits(self._tokens(network, words[:, :-1]))
            out[rows] = _of_words(logits, words).sum(dim=-1)
        return out

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, K] of `dtype`, as `Language.conditionals` says.

        At most one position of a sentence can be masked; raises `DataError` for several.  Cost: K (T - t)
        token passes for position t, counted from 1.
        """
        lengths = check_conditionals(self, ids, mask, dtype)
        marked = (ids != self.pad_id) if mask is None else mask & (ids != self.pad_id)
        out = torch.full((*ids.shape, self.vocabulary_size), torch.nan, dtype=dtype, device=ids.device)
        if mask is not None and len(lengths):
            count, row = marked.sum(dim=1).max(dim=0)
            if count > 1:
                K = self.vocabulary_size
                raise DataError(
                    f"sentence {int(row)}: {int(count)} positions are masked; the exact conditionals of a "
                    f"causal LM would take {K}^{int(count)} candidate sentences. Mask one position a sentence"
                )
        rows, columns = marked.nonzero(as_tuple=True)
        for some, found in self._conditionals(ids[rows], columns, dtype):
            out[rows[some], columns[some]] = found
        return out

    def conditionals_at(
        self, ids: Tensor, positions: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return log Pr(x_t = . | all other words) [B, K] of `dtype`, t the one of `positions` [B].

        Cost and errors as of `conditionals`; a position outside the sentence is a `DataError`.
        """
        check_conditionals(self, ids, self.mask_at(ids, positions), dtype)
        out = torch.empty(len(ids), self.vocabulary_size, dtype=dtype, device=ids.device)
        for some, found in self._conditionals(ids, positions, dtype):
            out[some] = found
        return out

    def sentence_entropy(self, ids: Tensor) -> Tensor:
        """Return (1/T) sum_t H(x_t | x_-t) of each sentence [B] in nats, float64."""
        # A few sentences at a time: their vectors are large, and cost far more than the calls.
        size = max(1, (1 << 22) // (self.max_length * self.vocabulary_size))
        parts = [super(CausalLM, self).sentence_entropy(rows) for rows in torch.split(ids, size)]
        return torch.cat(parts)

    def _conditionals(
        self, ids: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows [S] of sentences `ids` [N, T] with their conditionals [S, K] at `positions` [N]."""
        network = self._network(ids.device, dtype)
        most = self._rows(ids.device)
        for t in torch.unique(positions).tolist():
            size = max(1, most // (self.vocabulary_size * max(1, self.max_length - 1 - t)))
            for rows in torch.split((positions == t).nonzero()[:, 0], size):
                with torch.no_grad():
                    scores = self._scores(network, ids[rows, : self.max_length], t, most)
                yield rows, scores.log_softmax(dim=-1).to(dtype)

    def _scores(self, network: Network, words: Tensor, t: int, most: int) -> Tensor:
        """Return log Pr(x_>=t | x_<t) with x_t = c for every word c [S, K], float64."""
        S, K = len(words), self.vocabulary_size
        prefix = network.read(self._tokens(network, words[:, :t]))
        scores = prefix.logits.to(torch.float64).log_softmax(dim=-1)
        behind = words[:, t + 1 :]
        n = behind.shape[1]
        if n == 0:
            return scores
        for candidates in torch.split(torch.arange(K, device=words.device), max(1, most // (S * n))):
            C = len(candidates)
            tokens = torch.empty(S, C, n, dtype=torch.int64, device=words.device)
            tokens[:, :, 0] = network.kept[candidates]
            tokens[:, :, 1:] = network.kept[behind[:, None, :-1]]
            logits = network.branches(prefix, tokens)
            scores[:, candidates] += _of_words(logits, behind[:, None].expand(S, C, n)).sum(dim=-1)
        return scores

    def _tokens(self, network: Network, words: Tensor) -> Tensor:
        """Return the model's tokens [S, 1+n] of the words [S, n] behind the beginning."""
        first = torch.full((len(words), 1), self.bos, device=words.device)
        return torch.cat([first, network.kept[words]], dim=1)

    def _network(self, device: torch.device, dtype: torch.dtype) -> Network:
        key = (_indexed(device), dtype)
        if key not in self._networks:
            first = next(iter(self._networks.values()))
            self._networks[key] = first.moved(*key)
        return self._networks[key]

    def _rows(self, device: torch.device) -> int:
        """Return the tokens that the model reads in one pass."""
        elements = _PASS_ELEMENTS.get(device.type, _PASS_ELEMENTS_GPU)
        return max(_LEAST_ROWS, elements // self._width)

    @cached_property
    def _width(self) -> int:
        return next(iter(self._networks.values())).width


def _of_words(logits: Tensor, words: Tensor) -> Tensor:
    """Return log p(word) [...] of `words` [...] under logits [..., K], float64."""
    chosen = logits.gather(-1, words[..., None])[..., 0].to(torch.float64)
    return chosen - logits.to(torch.float64).logsumexp(dim=-1)


def _indexed(device: torch.device) -> torch.device:
    """Return the device with its number, so that `cuda` and `cuda:0` are the same key."""
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, torch.accelerator.current_device_index())
