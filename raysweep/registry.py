"""Registries from kind to config class: languages, models, algorithms, evaluations; built in or plugged in.

A config is a frozen, keyword-only pydantic model that lives beside the thing it configures, carries a
`kind`, and is decoded strictly: an unknown key or a wrong type is an error.  Adding a kind is one new file,
registered here by its dotted path (built in) or through an entry point of the group `raysweep.<family>`
(plug-in).  Classes are imported only when asked for.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from raysweep.errors import ConfigError


class Config(BaseModel):
    """Base of all configurations: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """Decode plain data as it comes from a sweep file (lists, numbers, strings, booleans, None).

        Raises `pydantic.ValidationError` with one entry per wrong field.
        """
        # JSON mode is strict about types and yet takes a list for a tuple, as a file must write it.
        return cls.model_validate_json(json.dumps(data))

    def encode(self) -> dict[str, Any]:
        """Return the normalised plain data: every field, defaults included."""
        data: dict[str, Any] = self.model_dump(mode="json")
        return data


class KindConfig(Config):
    """Base of the configurations of a family, which a registry knows by `kind`."""

    kind: str

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return a small configuration, which tests build and use within a second.

        Files that it names, such as a model or a text, are written into `folder`, which is there and empty.
        """
        raise TypeError(f"{cls.__name__} gives no example; define `example` to test it")


C = TypeVar("C", bound=KindConfig)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return " — did you mean 'x'?" for the nearest known word, or ""."""
    near = nearest_word(word, known)
    return f" — did you mean '{near}'?" if near is not None else ""


def nearest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one may mean, in letters of any case; None if none is near.

    >>> nearest_word("PCFG", ["hmm", "pcfg"]), nearest_word("betas", ["ema", "eps"])
    ('pcfg', None)
    """
    lowered = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[near[0]] if near else None


class Registry(Generic[C]):
    """The kinds of one family (`language`, `model`, `algorithm`, `evaluation`).

    >>> {"hmm", "pcfg"} <= set(languages.kinds())
    True
    """

    def __init__(self, family: str, builtin: Mapping[str, str]) -> None:
        self.family = family
        self._paths: dict[str, str] = dict(builtin)
        self._classes: dict[str, type[C]] = {}
        self._plugins_seen = False

    def register(self, kind: str, cls: type[C]) -> type[C]:
        """Add a kind at run time, e.g. from a notebook; a kind already taken is an error."""
        if kind in self.kinds():
            raise ConfigError(f"{self.family} kind '{kind}' is already registered; choose another name")
        self._classes[kind] = cls
        return cls

    def kinds(self) -> list[str]:
        """Return the names of all kinds, built in, registered and plugged in."""
        if not self._plugins_seen:
            self._plugins_seen = True
            for point in entry_points(group=f"raysweep.{self.family}"):
                self._paths.setdefault(point.name, point.value)
        return sorted({*self._paths, *self._classes})

    def path(self, kind: str) -> str:
        """Return the dotted path `module:Class` of a known kind, without importing it."""
        if kind in self._classes:
            cls = self._classes[kind]
            return f"{cls.__module__}:{cls.__qualname__}"
        return self._paths[kind]

    def get(self, kind: str) -> type[C]:
        """Return the config class of a kind; raises `ConfigError` for one that is not known."""
        if kind not in self.kinds():
            raise ConfigError(
                f"unknown {self.family} kind '{kind}'{suggest(kind, self.kinds())}; "
                f"known: {', '.join(self.kinds())}"
            )
        if kind not in self._classes:
            module, _, name = self._paths[kind].partition(":")
            self._classes[kind] = getattr(importlib.import_module(module), name)
        return self._classes[kind]

    def decode(self, data: Mapping[str, Any]) -> C:
        """Decode `{kind: ..., ...}`; raises `ConfigError` or `pydantic.ValidationError`."""
        kind = data.get("kind")
        if not isinstance(kind, str):
            raise ConfigError(f"{self.family}.kind: missing; choose one of {', '.join(self.kinds())}")
        return self.get(kind).decode(data)


languages: Registry[Any] = Registry(
    "language",
    {
        "pcfg": "raysweep.languages.pcfg.config:PCFGConfig",
        "hmm": "raysweep.languages.hmm:HMMConfig",
        "causal_lm": "raysweep.languages.causal_lm.config:CausalLMConfig",
        "dyck": "raysweep.languages.dyck:DyckConfig",
        "corpus": "raysweep.languages.corpus.config:CorpusConfig",
    },
)
models: Registry[Any] = Registry(
    "model",
    {
        "encoder": "raysweep.models.encoder:EncoderConfig",
        "lstm": "raysweep.models.lstm:LSTMConfig",
        "huggingface": "raysweep.models.pretrained:HuggingFaceConfig",
    },
)
algorithms: Registry[Any] = Registry(
    "algorithm",
    {
        "adamw": "raysweep.algorithms.adamw:AdamWConfig",
        "sgd": "raysweep.algorithms.sgd:SGDConfig",
        "sam": "raysweep.algorithms.sam:SAMConfig",
        "adversarial": "raysweep.algorithms.adversarial:AdversarialConfig",
        "muon": "raysweep.algorithms.muon:MuonConfig",
        "lookup_table": "raysweep.algorithms.lookup_table:LookupTableConfig",
        "dyck_two_neurons": "raysweep.algorithms.dyck:DyckTwoNeuronsConfig",
        "dyck_random_features": "raysweep.algorithms.dyck:DyckRandomFeaturesConfig",
    },
)
evaluations: Registry[Any] = Registry(
    "evaluation",
    {
        "excess_loss": "raysweep.evaluation.excess_loss:ExcessLossConfig",
        "trace": "raysweep.evaluation.trace:TraceConfig",
        "hessian": "raysweep.evaluation.hessian:HessianConfig",
        "spectrum": "raysweep.evaluation.spectrum:SpectrumConfig",
        "sharpness": "raysweep.evaluation.sharpness:SharpnessConfig",
        "held_out_loss": "raysweep.evaluation.held_out_loss:HeldOutLossConfig",
        "probe": "raysweep.evaluation.probe:ProbeConfig",
        "finetune": "raysweep.evaluation.finetune:FinetuneConfig",
        "quantize": "raysweep.evaluation.quantize:QuantizeConfig",
        "bartlett": "raysweep.evaluation.bartlett:BartlettConfig",
        "descent": "raysweep.evaluation.descent:DescentConfig",
        "dyck": "raysweep.evaluation.dyck:DyckConfig",
    },
)
