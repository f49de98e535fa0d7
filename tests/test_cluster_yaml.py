"""The files for `ray up` hold before anybody pays: Ray's own validator, and what raysweep needs of them."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]


FILES = ["cluster.yaml", "sweeps/clusters/gcp.yaml"]


def read(name: str) -> dict[str, Any]:
    return YAML(typ="safe").load(ROOT / name)


@pytest.fixture(scope="module", params=FILES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def test_ray_accepts_it(config: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(dict(config))
    validate_config(prepared)
    assert prepared["head_node_type"] == "head"


def test_ray_validator_is_not_a_rubber_stamp(config: dict[str, Any]) -> None:
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import validate_config

    with pytest.raises(ValidationError):
        validate_config({**config, "max_worker": 3})


def test_head_takes_no_work_and_both_worker_types_are_there(config: dict[str, Any]) -> None:
    types = config["available_node_types"]
    assert types["head"]["resources"]["CPU"] == 0
    workers = [t for name, t in types.items() if name != config["head_node_type"]]
    assert any("GPU" in t["resources"] for t in workers)
    assert any("GPU" not in t["resources"] for t in workers)
    assert all(0 <= t["min_workers"] <= t["max_workers"] <= config["max_workers"] for t in workers)


def test_every_node_asks_for_a_token(config: dict[str, Any]) -> None:
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert any("RAY_AUTH_MODE=token" in command for command in commands)
    assert "~/.ray/auth_token" in config["file_mounts"]


def test_workers_are_spot_nodes(config: dict[str, Any]) -> None:
    for name, kind in config["available_node_types"].items():
        text = str(kind["node_config"])
        assert ("spot" in text or "preemptible" in text) == (name != "head")


def test_clouds_differ_in_their_provider_and_nodes_alone() -> None:
    one, other = map(read, FILES)
    for config in (one, other):
        del config["provider"]
        for kind in config["available_node_types"].values():
            del kind["node_config"]
    assert one == other
