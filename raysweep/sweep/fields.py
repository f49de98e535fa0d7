"""The fields of configurations and their meaning, read from the text of classes without importing them.

The meaning of a field stands in one of two places, and nowhere else: in the `#:` comment above it, or in the
sentences of its class's docstring that name it in backticks.  A class has the fields of its bases, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path

#: The sections of a sweep file that have one class, and not one for each kind; claims are a list of it.
SECTIONS = {
    "pretrain": "raysweep.training.config:PretrainConfig",
    "init_from": "raysweep.training.start:InitFrom",
    "seeds": "raysweep.training.seeds:Seeds",
    "resources": "raysweep.sweep.resources:Resources",
    "search": "raysweep.sweep.search:Search",
    "claims": "raysweep.sweep.claims:Claim",
}
#: Most sentences of a docstring that tell the meaning of a field.
_SENTENCES = 3


@dataclass(frozen=True)
class ClassText:
    """The text of a configuration class: its docstring without examples, and the meaning of its fields.

    `fields` are those that it has, its bases' first; the meaning of one that nobody describes is "".
    """

    meaning: str
    fields: dict[str, str]


def read_class(place: str) -> ClassText:
    """Return the text of the class `module:Class`; without a field where no file holds its text."""
    found = list(_lineage(place))
    fields: dict[str, str] = {}
    for text in reversed(found):
        for name, comment in text.fields.items():
            fields[name] = comment or fields.get(name, "")
    sentences = [list(_sentences(text.meaning)) for text in found]
    for name, comment in fields.items():
        if not comment:
            told = (_about(name, of_class) for of_class in sentences)
            fields[name] = next(filter(None, told), "")
    return ClassText(found[0].meaning if found else "", fields)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text.

    >>> first_sentence("AdamW of Doe et al. 2019.  The label names each field, e.g. lr.")
    'AdamW of Doe et al. 2019.'
    """
    return next(_sentences(text), "")


def _sentences(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from re.split(r"(?<=[.])(?<! al[.])\s+(?=[A-Z0-9`])", " ".join(paragraph.split()))


def _about(name: str, sentences: Sequence[str]) -> str:
    """Return the sentences that name a field in backticks, "" if there are none."""
    named = re.compile(rf"`{name}(: [^`]*)?`")
    return " ".join([sentence for sentence in sentences if named.search(sentence)][:_SENTENCES])


@cache
def _lineage(place: str) -> tuple[ClassText, ...]:
    """Return a class and its bases as far as files hold them, the nearest first, with their own fields."""
    module, _, name = place.partition(":")
    read = _read(module)
    if read is None:
        return ()
    tree, lines = read
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own = {
                item.target.id: _comment(lines, item.lineno)
                for item in node.body
                if isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "ClassVar" not in ast.unparse(item.annotation)
                and not item.target.id.startswith("_")
            }
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            above = [text for base in bases for text in _lineage(f"{module}:{base}")]
            return (ClassText(_meaning(node), own), *above)
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _lineage(f"{node.module}:{alias.name}")
    return ()


def _meaning(node: ast.ClassDef) -> str:
    """Return the docstring of a class without its examples; each item of a list is a line."""
    paragraphs = cleandoc(ast.get_docstring(node) or "").split("\n\n")
    return _in_yaml("\n\n".join(_flowing(text) for text in paragraphs if not text.startswith(">>>")))


def _flowing(paragraph: str) -> str:
    """Return a paragraph in one line, or each item of a list in one.

    >>> _flowing("- the\\n  first;\\n- the second.")
    '- the first;\\n- the second.'
    """
    return "\n".join(" ".join(part.split()) for part in re.split(r"\n(?=- )", paragraph))


def _comment(lines: Sequence[str], line: int) -> str:
    """Return the `#:` comment above a line, which is counted from 1."""
    found: list[str] = []
    for text in reversed(lines[: line - 1]):
        mark, _, comment = text.strip().partition("#:")
        if mark or "#:" not in text:
            break
        found.append(comment.strip())
    return _in_yaml(" ".join(reversed(found)))


def _in_yaml(text: str) -> str:
    """Return a text about values of Python with the names that they have in a sweep file."""
    return re.sub(r"\bNone\b", "null", text)


@cache
def _read(module: str) -> tuple[ast.Module, list[str]] | None:
    """Return the tree and the lines of a module, without importing it or what is above it; None for none."""
    root, *rest = module.split(".")
    try:
        spec = find_spec(root)
    except ValueError:  # such as `__main__`
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin)
    if rest:
        path = path.parent.joinpath(*rest)
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file() or path.suffix != ".py":
        return None
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()
