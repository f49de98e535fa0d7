"""The English of the package, as far as a machine can check it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import raysweep

PACKAGE = Path(raysweep.__file__).parent
ROOT = PACKAGE.parent
#: All modules of the package and of its tests, but for this one, which names the phrases.
MODULES = sorted({*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")} - {Path(__file__)})
TEXTS = sorted(
    [ROOT / "README.md", ROOT / "cluster.yaml"]
    + [path for folder in (PACKAGE, ROOT / ".github", ROOT / "sweeps") for path in folder.rglob("*.md")]
    + list((ROOT / "sweeps").rglob("*.yaml"))
)

QUESTION = re.compile(r"(What|How|Where|Which|Whose|Why)\b")
#: Phrases that a reader stumbles over, wherever a line breaks in them.
PHRASES = (
    *("by itself", "worked off", "of which", "whose it is", "whose they are", "told apart", "told of"),
    *("is told", "are told", "stands beforehand", "not alike in", "See nothing", "those of these"),
    *("the norms of these", "none of it left", "a need of nothing", "whose are not is not"),
)
#: Words are parted by blanks, line breaks, the quotes of strings that go on, and the marks of comments.
BETWEEN = r"(?:[\s\"]|#:?)+"
BANNED = re.compile("|".join(rf"\b{phrase}\b".replace(" ", BETWEEN) for phrase in PHRASES))


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every docstring of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), text


def banned(text: str) -> list[str]:
    """Return `line: phrase` for every phrase that a text should do without."""
    return [f"{text.count(chr(10), 0, m.start()) + 1}: {m.group()}" for m in BANNED.finditer(text)]


def test_the_check_finds_what_it_looks_for() -> None:
    assert banned("a\nof\n    # which b by itself") == ["2: of\n    # which", "3: by itself"]
    assert banned('"by "\n"itself"') == ['1: by "\n"itself']
    assert banned("the limit itself, of whichever kind") == []
    assert list(docstrings(ast.parse('"""What."""\ndef f():\n    """How."""'))) == [(1, "What."), (2, "How.")]
    assert len(MODULES) > 50
    assert len(TEXTS) > 10


def test_docstrings_open_with_a_verb_or_with_what_the_thing_is() -> None:
    found = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for path in MODULES
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if QUESTION.match(text)
    ]
    assert found == []


def test_phrases_are_plain() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (*MODULES, *TEXTS)}
    assert [f"{path}:{place}" for path, text in texts.items() for place in banned(text)] == []
