"""Standard output of a launch on a terminal: Ray's remarks stay out of it, results come after the view."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from raysweep.cli import launch
from raysweep.engine import Results
from raysweep.sweep import Plan, Sweep, make_plan
from raysweep.sweep.provenance import last_launch, provenance, save_launch
from raysweep.sweep.run_state import LaunchState, run_states
from raysweep.sweep.spent import phase


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_terminal_has_its_standard_output_again_after_a_launch(
    finished: Sweep,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[BaseException] | None,
) -> None:
    # rich takes any stream for a terminal then.
    monkeypatch.setenv("FORCE_COLOR", "1")

    def start(
        sweep: Sweep,
        *,
        on_start: Callable[[Plan, Any], None],
        observer: Callable[[LaunchState], None],
        **_: Any,
    ) -> None:
        print("a remark of Ray before the view")
        on_start(make_plan(sweep), "a cluster")
        observer(LaunchState(runs=run_states(sweep), elapsed=1.0))
        print("a remark of Ray below the view")
        if error is not None:
            raise error

    monkeypatch.setattr("raysweep.engine.launch", start)
    before = sys.stdout
    settings: dict[str, Any] = {"only": None, "retry_failed": False, "reconnect": 0.0, "notify": ()}
    try:
        launch._launch(finished, address=None, **settings)
    except KeyboardInterrupt:
        assert error is not None
    assert sys.stdout is before
    print("the results")
    out, err = capsys.readouterr()
    assert out == "the results\n"
    assert "remark" not in err
    remarks = (finished.directory / "ray.log").read_text()
    assert remarks.splitlines()[-2:] == ["a remark of Ray before the view", "a remark of Ray below the view"]


def test_the_report_at_the_end_is_said_and_counted(
    finished: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    save_launch(finished.directory, provenance())
    results = Results(
        sweep=finished, failures={}, unfinished={}, worked_on=(finished.runs[0].run_id,), tracked=False
    )
    launch._show(results, "again", phase("load", 3.0, 2.0), json=False)
    assert capsys.readouterr().err.splitlines()[0] == "writing the report"
    found = last_launch(finished.directory)
    assert found is not None
    load, report = found["phases"]
    assert load == {"name": "load", "seconds": 3.0, "cpu_seconds": 2.0}
    assert report["name"] == "report"
    assert report["seconds"] > 0
