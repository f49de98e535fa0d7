"""Rooms import only downward; ray and mlflow come in where they are used, and not before."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raysweep

LIGHT = [
    *("languages", "generation", "models", "algorithms", "training", "flatness", "downstream"),
    *("evaluation", "sweep", "report"),
]

BASE = {"seeding", "registry", "errors", "files", "remote", "compiled", "version"}
KINDS = {"languages", "models", "algorithms"} | BASE
MEASURES = {"training", "downstream", "flatness"} | KINDS
SWEEP = {"sweep", "evaluation"} | MEASURES
#: What each room may import besides itself.
MAY = {
    "errors": set(),
    "registry": {"errors"},
    "seeding": {"errors"},
    "files": {"remote"},
    "remote": {"errors"},
    "processes": set(),
    "version": set(),
    "compiled": {"errors", "files", "remote", "seeding"},
    "languages": BASE,
    "generation": {"languages"} | BASE,
    "models": {"languages"} | BASE,
    "algorithms": {"languages", "models"} | BASE,
    "training": KINDS,
    "downstream": KINDS,
    "flatness": KINDS,
    "evaluation": MEASURES,
    "testing": {"evaluation"} | MEASURES,
    "sweep": SWEEP,
    "tracking": SWEEP,
    "report": SWEEP,
    "engine": {"generation", "tracking", "report", "processes"} | SWEEP,
    "bench": {"engine", "tracking", "report", "processes"} | SWEEP,
    "cli": {"engine", "tracking", "report", "bench"} | SWEEP,
}
PACKAGE = Path(raysweep.__file__).parent
#: The program that measures Ray and MLflow alone.
RAY_ALONE = PACKAGE / "bench" / "engine" / "alone.py"


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names of modules that a module imports, anywhere in it and for whatever reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Relative imports would say nothing about rooms: there are none.
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong(path: Path) -> list[str]:
    """Return what a module of the package imports against the order of the rooms."""
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = MAY[room] | {room}
    found = []
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        head, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if head == "raysweep" and target in MAY and target not in allowed:
            found.append(f"{path.relative_to(PACKAGE)}: {name}")
        ray = head == "ray" and room != "engine" and path != RAY_ALONE
        if ray or (head == "mlflow" and room != "tracking" and path != RAY_ALONE):
            found.append(f"{path.relative_to(PACKAGE)}: {name}")
    return found


def test_every_room_has_its_place() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    rooms |= {p.stem for p in PACKAGE.glob("*.py") if p.name != "__init__.py"}
    assert rooms == set(MAY)


def test_imports_go_only_downward() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    assert len(modules) > 50
    assert [line for path in modules for line in wrong(path)] == []


@pytest.mark.parametrize("room", [f".{room}" for room in LIGHT] + [""])
def test_light_rooms_leave_ray_and_mlflow_out(room: str) -> None:
    code = (
        f"import sys, raysweep{room}\n"
        "from raysweep.registry import languages\n"
        "[languages.get(kind) for kind in languages.kinds()]\n"
        "print(sorted({'ray', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
