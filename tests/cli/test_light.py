"""Help, version and completion import nothing that takes seconds."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import raysweep
from raysweep import registry
from raysweep.cli.app import app
from raysweep.sweep.fields import SECTIONS, read_class

HEAVY = {
    *("torch", "ray", "mlflow", "numpy", "scipy", "pandas", "pyarrow", "transformers", "matplotlib"),
    "pydantic",
}

PROGRAM = f"""\
import contextlib, io, sys
from raysweep.cli import __main__ as program
program._leave = sys.exit  # this process goes on
for words in sys.argv[1].split(";"):
    sys.argv = ["raysweep", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            program.main()
        except SystemExit as end:
            assert not end.code, (words, end.code)
    assert said.getvalue(), words
    heavy = {HEAVY!r} & set(sys.modules)
    assert not heavy, (words, heavy)
print("light")
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_help_and_version_import_nothing_heavy() -> None:
    asked = [" ".join([*path, "--help"]) for path in commands(typer.main.get_command(app))]
    assert {"--help", "launch --help", "status --help", "language show --help"} <= set(asked)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ";".join(["--version", *asked])],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "light\n"), done.stderr


def test_a_command_imports_no_other_command() -> None:
    program = (
        "import sys, raysweep.cli.app as app\n"
        "try: app.run(['doctor', '--help'])\n"
        "except SystemExit: pass\n"
        "print({p.split(':')[0] for p in app.app.info.cls.places.values()} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "{'raysweep.cli.doctor'}"


#: Completions: the words before the key, those that must be among the answers, and one that must not be.
ASKED = [
    ("raysweep stat", ["status"], "plan"),
    ("raysweep status ", ["small", "other", "small.yaml"], "status"),
    ("raysweep status sm", ["small", "small.yaml"], "other"),
    ("raysweep plan ", ["small.yaml"], "small"),
    ("raysweep launch small.yaml --only 8-", ["8-1-s0-aaaa000000"], "9-1-s0-bbbb000000"),
    ("raysweep evaluate ", ["8-1-s0-aaaa000000", "9-1-s0-bbbb000000"], "small/8-1-s0-aaaa000000"),
    ("raysweep evaluate other/", ["other/9-1-s0-bbbb000000"], "8-1-s0-aaaa000000"),
    ("raysweep logs ", ["small", "8-1-s0-aaaa000000"], "small.yaml"),
    ("raysweep logs small/", ["small/8-1-s0-aaaa000000"], "9-1-s0-bbbb000000"),
    ("raysweep export-model 9", ["9-1-s0-bbbb000000"], "8-1-s0-aaaa000000"),
    ("raysweep diff small 9", ["9-1-s0-bbbb000000"], "8-1-s0-aaaa000000"),
    ("raysweep evaluate x -e tr", ["trace"], "probe"),
    ("raysweep kinds p", ["pcfg", "pretrain", "probe"], "encoder"),
    ("raysweep evaluate x -e trace.in", ["trace.inputs="], "trace.kind="),
    ("raysweep plan small.yaml --set pre", ["pretrain."], "language."),
    ("raysweep plan small.yaml --set pretrain.b", ["pretrain.batch_size="], "pretrain.steps="),
    ("raysweep plan small.yaml --set algorithm.kind=s", ["algorithm.kind=sgd"], "algorithm.kind=adamw"),
    ("raysweep plan small.yaml --set evaluate.probe.se", ["evaluate.probe.seeds="], "evaluate.probe.train="),
    ("raysweep plan small.yaml --set nonsense.x", [], "nonsense.x="),
]

#: Words before the key where it is kinds or fields that are completed; their registry needs pydantic.
KINDS = (" -e ", " kinds ", " --set ")

COMPLETE = f"""\
import contextlib, io, json, os, sys
from raysweep.cli.app import run
os.environ["_RAYSWEEP_COMPLETE"] = "complete_bash"
found, light = [], True
sys.argv = ["raysweep"]
for words in json.loads(sys.stdin.read()):
    parts = words.split(" ")
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\\n".join(parts), str(len(parts) - 1)
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        run([])
    found.append(said.getvalue().splitlines())
    light = light and not any(kinds in words for kinds in {KINDS!r})
    heavy = {HEAVY!r} & set(sys.modules) - (set() if light else {{"pydantic"}})
    assert not heavy, (words, heavy)
print(json.dumps(found))
"""


def test_a_shell_completes_sweeps_runs_fields_and_kinds(tmp_path: Path) -> None:
    for sweep, run_id in (("small", "8-1-s0-aaaa000000"), ("other", "9-1-s0-bbbb000000")):
        (tmp_path / "results" / sweep / "runs" / run_id).mkdir(parents=True)
        (tmp_path / "results" / sweep / "sweep.json").write_text("{}")
    (tmp_path / "small.yaml").write_text("name: small\n")
    environment = {k: v for k, v in os.environ.items() if k != "RAYSWEEP_STORAGE"}
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE], input=json.dumps([words for words, _, _ in ASKED]),
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(raysweep.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for (words, wanted, unwanted), found in zip(ASKED, json.loads(done.stdout), strict=True):
        assert set(wanted) <= set(found), (words, found)
        assert unwanted not in found, (words, found)


@pytest.mark.parametrize("family", ["languages", "models", "algorithms", "evaluations"])
def test_fields_are_read_from_the_text_of_a_class_as_it_has_them(family: str) -> None:
    kinds = getattr(registry, family)
    for kind in kinds.kinds():
        assert list(read_class(kinds.path(kind)).fields) == list(kinds.get(kind).model_fields), kind
    for place in SECTIONS.values():
        module, _, name = place.partition(":")
        cls = getattr(importlib.import_module(module), name)
        assert list(read_class(place).fields) == list(cls.model_fields), place
