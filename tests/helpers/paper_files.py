"""Checks that the files of the paper's suite and their small siblings share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from raysweep.sweep import Sweep, arrays_identity

FOLDER = Path(__file__).parents[2] / "sweeps" / "paper"


def plain(name: str) -> dict[str, Any]:
    """Return what a file of the suite says itself; `name` may have a folder, and has no ending."""
    found: dict[str, Any] = YAML(typ="safe").load(FOLDER / f"{name}.yaml")
    return found


def check_shared(
    loaded: Callable[[str], Sweep], shared: Mapping[str, Sequence[str]], partly: Mapping[str, int]
) -> None:
    """Check that files of one name share their trainings and measurements, and others have other names.

    `shared` has the files with the runs of others, by one that has them all; `partly` the number of runs in
    common where not all are.
    """
    for whole, parts in shared.items():
        trained = {run.run_id: run for run in loaded(whole).runs}
        for part in parts:
            assert loaded(part).name == loaded(whole).name
            common = [run for run in loaded(part).runs if run.run_id in trained]
            assert len(common) == partly.get(part, len(loaded(part).runs)), part
            for run in common:
                other = trained[run.run_id]
                assert run.milestones == other.milestones
                for key, evaluation in run.evaluations.items():
                    # Another common shape takes no measurement.
                    assert arrays_identity(evaluation) == arrays_identity(other.evaluations[key])
    names = [loaded(whole).name for whole in shared]
    assert len(set(names)) == len(names)


def check_nothing_is_stated_twice(files: Iterable[str]) -> None:
    """Check that no file repeats a value of one that it extends, where that one's section is not replaced."""
    for name in files:
        own = plain(name)
        if "extends" in own:
            assert _repeated(plain(own["extends"].removesuffix(".yaml")), own) == [], name


def _repeated(parent: dict[str, Any], own: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths at which a mapping repeats the value of another that it is laid on."""
    if "kind" in parent and "kind" in own and parent["kind"] != own["kind"]:
        return []
    found = []
    for key in parent.keys() & own.keys():
        if isinstance(parent[key], dict) and isinstance(own[key], dict):
            found += _repeated(parent[key], own[key], f"{path}{key}.")
        elif parent[key] == own[key] and key != "kind":
            found.append(path + key)
    return found
