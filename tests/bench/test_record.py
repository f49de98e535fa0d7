"""Records survive the disk, other files are refused, and no record names a machine or its user."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysweep.bench import environment as environments
from raysweep.bench.record import RESULTS, Record, load, of_suite, save
from raysweep.bench.suites import OWN_RUNNERS, SUITES, entries
from raysweep.errors import ConfigError

COMMITTED = sorted(RESULTS.glob("*/*.json"))
#: Cases that are one launch of hundreds of units, beside the same work in one process.
LAUNCHED_ONCE = {"many-runs"}


def test_a_record_survives_the_disk(record: Record, tmp_path: Path) -> None:
    save(record, tmp_path / "record.json")
    assert load(tmp_path / "record.json") == record
    assert json.loads((tmp_path / "record.json").read_text())["environment"]["threads"] == 1


def test_a_record_in_a_folder_has_the_name_of_its_processor(record: Record, tmp_path: Path) -> None:
    (tmp_path / "exact").mkdir()
    place = record.environment
    for cpu, gpu, date in (
        ("AMD EPYC (family 25, model 1)", None, "2026-01-02"),
        ("Intel(R) Xeon(R) Processor (family 6, model 207)", None, "2026-01-03"),
        ("AMD EPYC", None, "2026-01-01"),
        ("AMD EPYC (family 25, model 1)", "NVIDIA H100 80GB HBM3", "2025-01-01"),
    ):
        here = place.model_copy(update={"cpu": cpu, "gpu": gpu, "date": date})
        save(record.model_copy(update={"environment": here}), tmp_path / "exact")
    names = ["intel-6-207-avx2", "amd-25-1-avx2", "amd-epyc-avx2", "nvidia-h100-80gb-hbm3"]
    found = of_suite("exact", tmp_path)
    assert [one.environment.processor for one in found] == names
    assert sorted(path.stem for path in (tmp_path / "exact").iterdir()) == sorted(names)
    with pytest.raises(ConfigError, match=r"--suite: there is no record of 'exakt' — did you mean 'exact'"):
        of_suite("exakt", tmp_path)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_records_lie_where_they_belong(path: Path) -> None:
    record = load(path)
    assert (record.suite, record.environment.processor) == (path.parent.name, path.stem)


def test_a_record_tells_what_else_the_machine_did() -> None:
    """A process beside this one keeps a processor busy for half a second, and this one keeps itself busy."""
    company = environments.Company()
    alone, _ = company.told()
    # It is a child that has not been waited for, so its time is not known to be our own.
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            deadline = time.monotonic() + 0.5
            while time.monotonic() < deadline:
                pass
            others, stolen = company.told()
        finally:
            other.kill()
    assert alone is None or alone >= 0
    assert others is not None
    assert 0.2 < others <= (os.cpu_count() or 1)
    assert stolen is not None
    assert 0 <= stolen < 1
    place = environments.environment(1, company=company)
    assert place.others is not None
    assert environments.environment(1).others is None


def test_failures_are_named(record: Record) -> None:
    assert record.of_status("failed") == ["first: wrong"]
    assert record.of_status("absent") == ["first: gone"]


def test_goals_are_looked_at_where_something_was_found(record: Record) -> None:
    rows, figures = record.cases[0].comparisons, record.cases[1].figures
    assert [row.met for row in rows] == [True, False, None, None]
    assert [figure.met for figure in figures] == [True, None]


def test_other_files_are_refused(record: Record, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read"):
        load(tmp_path / "absent.json")
    file = tmp_path / "record.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"record\.json: no benchmark record: suite: Field required"):
        load(file)
    data = json.loads(record.model_dump_json())
    data["cases"][0]["colour"] = "red"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"cases\.0\.colour: Extra inputs are not permitted"):
        load(file)


def test_the_environment_names_no_machine() -> None:
    found = environments.environment(1)
    assert {"raysweep", "torch", "numpy"} <= set(found.versions)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.date)
    assert (found.commit is None) == (found.dirty is None)
    text = found.model_dump_json()
    for word in (socket.gethostname(), str(Path.home()), str(Path(__file__).parents[2])):
        assert word not in text
    assert f'"{getpass.getuser()}"' not in text


@pytest.mark.parametrize(("tiles", "name"), [(True, "avx512-amx"), (False, "avx512")])
def test_a_processor_with_tiles_has_a_name_of_its_own(
    tiles: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysweep.compiled.amx.usable", lambda: tiles)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    assert environments.environment(1).processor.endswith(f"-{name}")


def test_peak_is_positive() -> None:
    peak = environments.measure_peak(quick=True)
    assert min(peak.gemm_float32_gflops, peak.gemm_float64_gflops, peak.copy_gbytes) > 0


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_records_are_whole(path: Path) -> None:
    record = load(path)
    assert not record.quick
    assert record.of_status("failed") == []
    if record.suite in SUITES:
        known = entries(record.suite, device="cpu" if record.environment.gpu is None else "cuda")
        assert [(c.key, c.work) for c in record.cases] == [(entry.key, entry.work) for entry in known]
    for case in record.cases:
        assert case.timing is not None or case.figures or case.reason
        assert case.timing is None or case.key in LAUNCHED_ONCE or case.timing.repeats >= 3
    # No folders and no hosts.
    assert not re.search(r"/(work|home|tmp|root|usr|mnt)\b|https?://", path.read_text())
    assert set(re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", path.read_text())) <= {"127.0.0.1"}


def test_every_record_belongs_to_a_suite() -> None:
    assert {path.parent.name for path in COMMITTED} <= {*SUITES, *OWN_RUNNERS}


def test_unknown_cases_are_refused() -> None:
    keys = [entry.key for entry in entries("exact")]
    assert len(keys) == len(set(keys))
    assert [entry.key for entry in entries("exact", ["hmm-dense"])] == ["hmm-dense"]
    with pytest.raises(ConfigError, match=r"--only: bench exact has no case 'pcfg-dens' .*mean 'pcfg-dense'"):
        entries("exact", ["pcfg-dens"])
