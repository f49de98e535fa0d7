"""The first sweep file of somebody: written from a few wishes, with the meaning of each of its fields.

Meanings come from where they stand for all: the sections' from `raysweep.sweep.schema`, those of fields and
kinds from the text of their classes (`raysweep.sweep.fields`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysweep import registry
from raysweep.sweep.fields import SECTIONS, first_sentence, read_class
from raysweep.sweep.scalars import flow
from raysweep.sweep.schema import MEANING

_WIDTH = 100
_CLAIMS = "raysweep.sweep.claims"

_TRACE = {"inputs": 65536, "target_rse": 0.03, "shard_size": 16384}
_TASKS = {"tasks": "[{glue: sst2}]"}


@dataclass(frozen=True, kw_only=True)
class Template:
    """The sweep that is proposed for one kind of language."""

    #: The language in a few words, for the description of the sweep.
    about: str
    #: The fields of the language.
    language: Mapping[str, Any]
    #: The field of the language that says where it is read from; None for a language that is drawn.
    source: str | None = None
    sizes: tuple[str, ...] = ("32/2/1/128", "48/3/1/192", "64/4/1/256")
    rates: tuple[float, ...] = (0.003, 0.008)
    steps: int = 2000
    warmup: int = 100
    dropout: float = 0.0
    #: Further fields of the algorithm and of pre-training.
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)
    #: Evaluations with their fields.
    evaluate: Mapping[str, Mapping[str, Any]]
    tolerance: float | None = None
    #: Fields of the language that stand in the file as comments, as YAML.
    hints: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_tasks(self) -> bool:
        """True where the language has downstream tasks, so that there are claims to make."""
        return "probe" in self.evaluate


#: Kind of language -> the sweep proposed for it.  Heads of one width let traces of several sizes be compared.
TEMPLATES = {
    "pcfg": Template(
        about="a small probabilistic context-free grammar",
        language={
            **{"structure": "layered", "seed": 0, "roots": 8, "layers": 3, "symbols": 4, "rules": 2},
            **{"stop": 0, "words": 8, "vocabulary": 24},
        },
        source="path",
        algorithm={"ema": 0.998},
        evaluate={
            "excess_loss": {"sentences": 4096},
            "trace": _TRACE,
            "probe": {"seeds": 5, "train": 512, "test": 8192},
        },
        tolerance=0.05,
    ),
    "hmm": Template(
        about="a small hidden Markov model",
        language={
            **{"seed": 0, "states": 8, "vocabulary": 16, "length": 8, "blocks": 2, "concentration": 0.5},
            "tasks": [4, 6],
        },
        steps=3200,
        algorithm={"ema": 0.998},
        evaluate={
            "excess_loss": {"sentences": 4096},
            "trace": _TRACE,
            "probe": {"seeds": 5, "train": 512, "test": 8192},
        },
        tolerance=0.02,
    ),
    "dyck": Template(
        about="strings of brackets",
        language={"length": 8},
        algorithm={"ema": 0.998},
        evaluate={"excess_loss": {"sentences": 4096}, "trace": _TRACE},
        tolerance=0.02,
    ),
    "causal_lm": Template(
        about="text written by a causal language model",
        language={"model": "facebook/opt-125m", "keep": 2000, "length": 24},
        source="model",
        sizes=("table3-64", "table3-128", "table3-192"),
        rates=(0.001,),
        steps=8000,
        warmup=500,
        evaluate={
            "excess_loss": {"sentences": 256, "shard_size": 16, "positions": "random"},
            "trace": {"inputs": 2048},
        },
        hints=_TASKS,
    ),
    "corpus": Template(
        about="text of your own",
        language={
            **{"source": None, "document": "paragraph", "length": 64, "held_out": 0.01},
            "tokenizer": {"train": "wordpiece", "vocabulary": 8192},
        },
        source="source",
        sizes=("128/4/2/512", "192/6/2/768", "256/8/4/1024"),
        rates=(0.001,),
        steps=10000,
        warmup=500,
        dropout=0.1,
        pretrain={"mask": 0.15},
        evaluate={
            "held_out_loss": {"sentences": 4096, "mask": 0.15},
            "trace": {"inputs": 4096, "mask": 0.15},
        },
        hints=_TASKS,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The wishes for a sweep file; None is the template's choice."""

    name: str
    #: The file, as commands name it.
    file: str
    #: The place of the JSON Schema, as the file names it.
    schema: str
    kind: str = "pcfg"
    #: Fields of the language that differ from the template's; None leaves one out.
    language: Mapping[str, Any] = field(default_factory=dict)
    #: Fields of evaluations that differ from the template's.
    evaluate: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: Sequence[str] | None = None
    rates: Sequence[float] | None = None
    steps: int | None = None
    seeds: int = 2
    gpu: bool = False


def sweep_file(wishes: Wishes) -> str:
    """Return the text of a sweep file with a comment on every section and field."""
    template = TEMPLATES[wishes.kind]
    sections = [
        _head(wishes, template),
        _language(wishes, template),
        *_training(wishes, template),
        _evaluate(wishes, template),
        _axes(wishes, template),
        *_questions(wishes, template),
        _resources(wishes),
        _spare("keep", "last"),
        _spare("notify", "'mail -s raysweep me@example.org'"),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def milestones(steps: int) -> list[int]:
    """Return the steps that are measured: few at first, where losses still differ much.

    >>> milestones(2000), milestones(2)
    ([500, 1000, 1250, 1500, 1750, 2000], [1, 2])
    """
    return sorted({max(1, round(steps * eighths / 8)) for eighths in (2, 4, 5, 6, 7, 8)})


def _sizes(wishes: Wishes, template: Template) -> list[str]:
    return list(dict.fromkeys(template.sizes if wishes.sizes is None else wishes.sizes))


def _rates(wishes: Wishes, template: Template) -> list[float]:
    return list(dict.fromkeys(template.rates if wishes.rates is None else wishes.rates))


def _head(wishes: Wishes, template: Template) -> list[str]:
    plan, launch = f"raysweep plan {wishes.file}", f"raysweep launch {wishes.file}"
    return [
        f"# yaml-language-server: $schema={wishes.schema}",
        *_comment(
            f"Encoders on {template.about}.  Any value may be changed; after a launch, the same command "
            "computes what is new."
        ),
        "#",
        f"#   {plan:<{len(launch)}}  # its runs, and how long they should take",
        f"#   {launch}  # trains and measures; goes on where it was interrupted",
        "#",
        "# `raysweep kinds` lists the kinds of languages, models, algorithms and evaluations, and",
        "# `raysweep kinds KIND` all fields of one.",
        f"name: {flow(wishes.name)}",
        f"description: Encoders on {template.about}",
    ]


def _language(wishes: Wishes, template: Template) -> list[str]:
    text = read_class(registry.languages.path(wishes.kind))
    values = {k: v for k, v in {**template.language, **wishes.language}.items() if v is not None}
    return [
        *_comment(f"{MEANING['language']}  {first_sentence(text.meaning)}"),
        "language:",
        _kind(registry.languages, wishes.kind),
        *_fields(values, text.fields),
        *(line for name, value in template.hints.items() for line in _spare(name, value, text.fields, "  ")),
    ]


def _training(wishes: Wishes, template: Template) -> Iterator[list[str]]:
    """Yield the sections model, algorithm and pretrain."""
    steps = template.steps if wishes.steps is None else wishes.steps
    model = {"shape": _sizes(wishes, template)[0], "dropout": template.dropout}
    rate = _rates(wishes, template)[0]
    algorithm = {"lr": rate, "warmup_steps": min(template.warmup, steps // 10), **template.algorithm}
    for name, family, kind, values in (
        ("model", registry.models, "encoder", model),
        ("algorithm", registry.algorithms, "adamw", algorithm),
    ):
        fields = read_class(family.path(kind)).fields
        yield [*_comment(MEANING[name]), f"{name}:", _kind(family, kind), *_fields(values, fields)]
    pretrain = {"steps": steps, "batch_size": 256, **template.pretrain, "milestones": milestones(steps)}
    fields = read_class(SECTIONS["pretrain"]).fields
    yield [*_comment(MEANING["pretrain"]), "pretrain:", *_fields(pretrain, fields)]


def _evaluate(wishes: Wishes, template: Template) -> list[str]:
    lines = [*_comment(first_sentence(MEANING["evaluate"])), "evaluate:"]
    for kind, values in template.evaluate.items():
        text = read_class(registry.evaluations.path(kind))
        lines += [*_comment(first_sentence(text.meaning), "  "), f"  {kind}:"]
        lines += _fields({**values, **wishes.evaluate.get(kind, {})}, text.fields, "    ")
    if "tasks" in template.hints:
        text = read_class(registry.evaluations.path("probe"))
        lines += [*_comment(first_sentence(text.meaning), "  "), "  # probe: {train: null, test: null}"]
    return lines


def _axes(wishes: Wishes, template: Template) -> list[str]:
    axes: dict[str, Any] = {}
    for path, values in (
        ("model.shape", _sizes(wishes, template)),
        ("algorithm.lr", _rates(wishes, template)),
    ):
        if len(values) > 1:
            axes[path] = values
    seeds = "[0]" if wishes.seeds == 1 else f"0..{wishes.seeds - 1}"
    found = [*_comment(MEANING["axes"]), "axes:", *(f"  {path}: {flow(v)}" for path, v in axes.items())]
    found.append(f"  seed: {seeds}")
    if template.has_tasks:
        told = first_sentence(read_class(registry.algorithms.path("lookup_table")).meaning)
        found += ["", *_comment(f"{MEANING['include']}  The look-up table: {told[0].lower()}{told[1:]}")]
        found += ["include:", "  - algorithm: {kind: lookup_table}"]
    return found


def _questions(wishes: Wishes, template: Template) -> Iterator[list[str]]:
    """Yield `tolerance` and `claims`."""
    meaning = read_class(f"{_CLAIMS}:Questions").fields
    if template.tolerance is not None:
        yield [*_comment(meaning["tolerance"]), f"tolerance: {template.tolerance}"]
    if not template.has_tasks:
        why = "A claim compares accuracies on tasks, and this language has none"
        remedy = "; with the lines `tasks` and `probe` above it has" if "tasks" in template.hints else ""
        yield [*_comment(f"{meaning['claims']}  {why}{remedy}."), "claims: []"]
        return
    several = len(_sizes(wishes, template)) > 1
    lines = [*_comment(meaning["claims"]), "claims:"]
    for name in ("Flatter", "Longer", *(["Larger"] if several else []), "Beats"):
        lines += [*_comment(read_class(f"{_CLAIMS}:{name}").meaning, "  "), f"  - {name.lower()}: {{}}"]
    yield lines


def _resources(wishes: Wishes) -> list[str]:
    per_worker = {"GPU": 1} if wishes.gpu else {"CPU": 1}
    values = {"workers": 1, "per_worker": per_worker, "evaluate": {"CPU": 1}}
    fields = read_class(SECTIONS["resources"]).fields
    return [*_comment(MEANING["resources"]), "resources:", *_fields(values, fields)]


def _kind(family: registry.Registry[Any], kind: str) -> str:
    return f"  kind: {kind}  # or {', '.join(other for other in family.kinds() if other != kind)}"


def _fields(values: Mapping[str, Any], meanings: Mapping[str, str], indent: str = "  ") -> Iterator[str]:
    """Yield the lines of a section's fields, each below its meaning."""
    for name, value in values.items():
        yield from _comment(meanings[name], indent)
        yield f"{indent}{name}: {flow(value)}"


def _spare(name: str, value: str, meanings: Mapping[str, str] = MEANING, indent: str = "") -> list[str]:
    """Return a field that is left out, as a comment."""
    return [*_comment(meanings[name], indent), f"{indent}# {name}: {value}"]


def _comment(text: str, indent: str = "") -> list[str]:
    start = f"{indent}# "
    wrap = textwrap.TextWrapper(_WIDTH, initial_indent=start, subsequent_indent=start)
    wrap.break_long_words = wrap.break_on_hyphens = False
    # YAML's word for it.
    return wrap.wrap(re.sub(r"\bNone\b", "null", text))
