"""The suite of a paper: a folder of sweep files, one for each of its figures and tables.

    sweeps/paper/fig1.yaml             a figure at the paper's scale, with what the paper found (`paper:`)
    sweeps/paper/fig1-small.yaml       the same question at a size for one machine
    sweeps/paper/results/fig1-small/   the committed results of that file (`raysweep.report.committed`)

Several files may have one name, and so one ledger.  Nothing here builds a language, so a suite is listed also
where the text of some of its files is not at hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

import raysweep.version
from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep.claims import Paper, Questions
from raysweep.sweep.config import Sweep
from raysweep.sweep.document import Problems
from raysweep.sweep.explain import explain
from raysweep.sweep.format import STORED
from raysweep.sweep.identity import digest
from raysweep.sweep.load import load_sweep
from raysweep.sweep.lock import holder
from raysweep.sweep.plan import Plan
from raysweep.sweep.planner import make_plan
from raysweep.sweep.reading import read_file

#: The ending of the names of files for one machine.
SMALL = "-small"
#: Folder of the committed results.
RESULTS = "results"
#: Fields that change no result.
_IDLE = frozenset({"description", "paper", "resources", "extends"})

State = Literal["not run", "running", "unfinished", "failed", "done"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file of a suite; `paper` is what the paper found, None where no file of the figure says it."""

    path: Path
    #: The file as plain data, with all that it extends.
    content: dict[str, Any]
    paper: Paper | None

    @property
    def stem(self) -> str:
        """The name of the file without its ending."""
        return self.path.stem

    @property
    def figure(self) -> str:
        """The stem of the file at the paper's scale."""
        return self.stem.removesuffix(SMALL)

    @property
    def small(self) -> bool:
        """Whether the file is for one machine."""
        return self.stem.endswith(SMALL)

    @property
    def name(self) -> str:
        """The name of the sweep, and of its ledger."""
        return str(self.content["name"])

    @property
    def results(self) -> Path:
        """The folder of its committed results."""
        return self.path.parent / RESULTS / self.stem

    @cached_property
    def configuration(self) -> str:
        """The sha256 of what the file asks for; comments, descriptions and resources are no part of it."""
        return digest({key: value for key, value in self.content.items() if key not in _IDLE})


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The progress of a file in a storage: `done` runs of `runs`; `failed` others could not go on."""

    state: State
    runs: int = 0
    done: int = 0
    failed: int = 0

    @property
    def words(self) -> str:
        """The state for a reader."""
        of = f"{self.done} of {self.runs} runs"
        match self.state:
            case "running" | "unfinished":
                return f"{self.state} ({of})"
            case "failed":
                return f"failed ({self.failed} of {self.runs} runs)"
        return self.state


def suite_folder(folder: Path | None = None) -> Path:
    """Return the folder of a suite: that one, or `sweeps/paper` of the clone that raysweep runs from.

    Raises `ConfigError` where there is none.
    """
    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"--folder {folder}: is no folder; name one of sweep files, e.g. sweeps/paper")
        return folder
    own = Path(raysweep.version.__file__).resolve().parents[1] / "sweeps" / "paper"
    if not own.is_dir():
        raise ConfigError(
            f"the paper's sweeps are not beside this installation of raysweep (there is no {own}); they come "
            "with a clone of its repository: name their folder with --folder .../sweeps/paper"
        )
    return own


def suite(folder: Path | None = None) -> list[Member]:
    """Return the files of a suite in the order of the paper: those of a figure follow each other.

    Raises `ConfigError` for a folder without sweep files, and for a file that is none.
    """
    place = suite_folder(folder)
    paths = sorted(
        place.glob("*.yaml"), key=lambda path: (_natural(path.stem.removesuffix(SMALL)), path.stem)
    )
    if not paths:
        raise ConfigError(f"{place}: holds no sweep files (*.yaml); --folder names another folder")
    contents = {path.stem: _content(path) for path in paths}
    papers = {stem: questions.paper for stem, (_, questions) in contents.items()}
    return [
        Member(
            path=path,
            content=contents[path.stem][0],
            paper=papers.get(path.stem.removesuffix(SMALL), papers[path.stem]),
        )
        for path in paths
    ]


def chosen(members: Sequence[Member], names: Sequence[str]) -> list[Member]:
    """Return the files that are named, by their stem or path, in the order of the suite; without names, all.

    Raises `ConfigError` for a name that is none of them.
    """
    known = {member.stem: member for member in members}
    wanted = set()
    for name in names:
        stem = Path(name).name.removesuffix(".yaml")
        if stem not in known or (Path(name).parent != Path() and not _same(Path(name), known[stem].path)):
            raise ConfigError(
                f"'{name}' is no file of the suite in {members[0].path.parent}{suggest(stem, known)}; "
                "`raysweep paper` lists them"
            )
        wanted.add(stem)
    return [member for member in members if not names or member.stem in wanted]


def opened(member: Member, storage: Path) -> Sweep | None:
    """Return the sweep of a file that its storage may know something of; None where nothing was launched.

    Raises `ConfigError` where the file is not valid here, such as without the text that it names.
    """
    if not (storage / member.name).is_dir():
        return None
    return load_sweep(member.path, storage=storage)


def standing(sweep: Sweep | None) -> Standing:
    """Return how far the sweep of a file has come, by the ledger of its name; None has not been launched."""
    if sweep is None:
        return Standing(state="not run")
    plan = make_plan(sweep)
    counts = plan.counts
    state: State = "unfinished"
    if counts["done"] == len(plan.runs):
        state = "done"
    elif holder(sweep.directory) is not None and _launched(sweep.directory) == sweep.path.resolve():
        state = "running"
    elif not _begun(plan):
        state = "not run"
    elif not plan.to_do:
        state = "failed"
    return Standing(state=state, runs=len(plan.runs), done=counts["done"], failed=counts["failed"])


def _begun(plan: Plan) -> bool:
    """Return whether any run has a record of its own."""
    begun = ("done", "evaluate", "resume", "failed")
    return any(run.state in begun or any(item.state == "done" for item in run.items) for run in plan.runs)


def _launched(directory: Path) -> Path | None:
    """Return the file that was launched last under a name."""
    try:
        return Path(json.loads((directory / STORED).read_bytes())["path"]).resolve()
    except (OSError, ValueError, KeyError):
        return None


def _content(path: Path) -> tuple[dict[str, Any], Questions]:
    """Return a file as plain data, and what it asks; raises `ConfigError` where that is not valid."""
    problems, questions = Problems(), Questions()
    root = read_file(path, problems)
    try:
        questions = Questions.of(root.plain)
    except ValidationError as error:
        explain(error, Questions, root, (), root.mark, problems)
    name = root.get("name")
    if name is None or not isinstance(name.value, str):
        problems.add(root.mark, "name", "missing — add 'name: my-sweep'")
    problems.raise_any()
    return root.plain, questions


def _natural(stem: str) -> list[tuple[int, str]]:
    """Return a key by which names with numbers are in the order of people.

    >>> sorted(["fig10", "table1", "fig2a", "fig1"], key=_natural)
    ['fig1', 'fig2a', 'fig10', 'table1']
    """
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", stem)]


def _same(path: Path, other: Path) -> bool:
    return path.resolve() == other.resolve()
