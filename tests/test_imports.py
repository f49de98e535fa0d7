"""The science rooms start neither Ray nor MLflow."""

import subprocess
import sys

import pytest

ROOMS = ["languages", "models", "algorithms", "training", "flatness", "downstream", "evaluation"]


@pytest.mark.parametrize("room", ROOMS)
def test_science_rooms_leave_ray_and_mlflow_out(room: str) -> None:
    code = (
        f"import sys, raysweep.{room}\n"
        "from raysweep.registry import languages\n"
        "[languages.get(kind) for kind in languages.kinds()]\n"
        "print(sorted({'ray', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]"
