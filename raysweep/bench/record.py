"""The record of a benchmark: a JSON file with all figures, their spread, their goals and their origin."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from raysweep.errors import ConfigError
from raysweep.registry import Config, suggest

#: Folder of the committed records: a folder for each suite, with a file for each processor or GPU.
RESULTS = Path(__file__).parent / "results"

#: The direction of a goal; "within" has two ends.
Sense = Literal["at least", "at most", "within"]

#: The time that counts: CPU time of all threads of the process, or wall time where a GPU does the work.
Clock = Literal["cpu", "wall"]

#: A peer is `equal` and timed; `unequal` for a known reason, and timed; `failed`, that is not equal and not
#: timed; or `absent`, that is not installed or unable to do the work.
Status = Literal["equal", "unequal", "failed", "absent"]


class Spread(Config):
    """The median and quartiles over repeats."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of one value or more.

        >>> Spread.of([3.0, 1.0, 2.0]).median
        2.0
        """
        lower, median, upper = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(median=median, lower=lower, upper=upper)


class Goal(Config):
    """A goal for a figure; `upto` is the upper end of one with two ends.

    A share that is to be at most `value` misses it by more than so many standard `errors` of that share.
    """

    sense: Sense
    value: float
    upto: float | None = None
    errors: float = 0.0

    def allowance(self, among: int | None) -> float:
        """Return by how much a share among so many may exceed the goal; 0 where that is not known."""
        spread = self.value * (1 - self.value)
        return self.errors * math.sqrt(spread / among) if self.errors and among else 0.0

    def met(self, value: float, among: int | None = None) -> bool:
        """Tell whether a figure, or a share `among` so many, reaches the goal."""
        if self.sense == "within":
            return self.upto is not None and self.value <= value <= self.upto
        if self.sense == "at least":
            return value >= self.value
        return value <= self.value + self.allowance(among)


class Timing(Config):
    """Seconds for a unit of work, over `repeats` calls of `units` units each."""

    units: float
    repeats: int
    cpu_seconds: Spread
    wall_seconds: Spread
    clock: Clock = "cpu"

    @property
    def seconds(self) -> Spread:
        """Return the time that counts."""
        return self.cpu_seconds if self.clock == "cpu" else self.wall_seconds


class Check(Config):
    """The distance of a peer's results from raysweep's, measured before anything is timed."""

    quantity: str
    value: float | None
    tolerance: float
    passed: bool


class Comparison(Config):
    """A peer beside raysweep.

    `reason` says why a peer is `unequal` or `absent`.  A ratio is the peer's time for a unit divided by
    raysweep's in the same round.
    """

    peer: str
    status: Status
    reason: str | None = None
    note: str | None = None
    check: Check | None = None
    timing: Timing | None = None
    cpu_ratio: Spread | None = None
    wall_ratio: Spread | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> Spread | None:
        """Return the ratio of the times that count; None where nothing was timed."""
        return self.cpu_ratio if self.timing is None or self.timing.clock == "cpu" else self.wall_ratio

    @property
    def met(self) -> bool | None:
        """Tell whether the goal is reached; None without a goal or a ratio."""
        if self.goal is None or self.ratio is None:
            return None
        return self.goal.met(self.ratio.median)


class Figure(Config):
    """A number of raysweep alone; `among` so many it is a share, if so."""

    name: str
    unit: str
    value: float
    among: int | None = None
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """Tell whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.met(self.value, self.among)


class CaseRecord(Config):
    """A piece of work: raysweep's time for it, its peers, and further figures."""

    key: str
    work: str
    unit: str
    #: None where raysweep itself cannot do the work here, for `reason`.
    timing: Timing | None = None
    reason: str | None = None
    comparisons: tuple[Comparison, ...] = ()
    figures: tuple[Figure, ...] = ()


class Peak(Config):
    """The peak of the machine, measured in the same run on the same threads.

    Where the suite runs on a GPU, it is the peak of the GPU.
    """

    gemm_float32_gflops: float
    gemm_float64_gflops: float
    #: None in older records.
    gemm_bfloat16_gflops: float | None = None
    copy_gbytes: float


class Environment(Config):
    """The machine and the software that a record was measured with."""

    date: str
    cpu: str
    cpu_capability: str
    cores: int
    memory_gib: float
    threads: int
    #: The GPU that the suite ran on; None for one that ran on the processor.
    gpu: str | None = None
    #: Processors that other work kept busy meanwhile, and the share of all processors' time that the host
    #: took away; None where that is not known.
    others: float | None = None
    stolen: float | None = None
    system: str
    python: str
    versions: dict[str, str]
    commit: str | None
    dirty: bool | None

    @property
    def processor(self) -> str:
        """Return a name for files, by what counts: vendor, family, model and instruction sets, or the GPU.

        >>> place = Environment.model_construct(
        ...     cpu="Intel(R) Xeon(R) Processor (family 6, model 207)", cpu_capability="AVX512 AMX", gpu=None
        ... )
        >>> place.processor
        'intel-6-207-avx512-amx'
        """
        if self.gpu is not None:
            return _for_files(self.gpu)
        known = re.search(r"\(family (\d+), model (\d+)\)$", self.cpu)
        vendor = next((name for name in ("intel", "amd") if name in self.cpu.lower()), None)
        if known is None or vendor is None:
            return _for_files(f"{self.cpu} {self.cpu_capability}")
        return "-".join((vendor, *known.groups(), _for_files(self.cpu_capability)))


def _for_files(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class Applied(Config):
    """A fault that hit a launch, or the files between two launches."""

    kind: str
    #: What was hit.
    hit: str
    #: Seconds after the start of the launch; None between launches.
    after: float | None


class Launch(Config):
    """A launch of a sweep under faults, with those that came between it and the launch before."""

    code: int
    seconds: float
    #: Seconds from its end to the end of its last process.
    leaving: float
    faults: tuple[Applied, ...]
    #: Its last lines.
    words: str
    #: The ways in which it ended badly; empty if it ended well.
    trouble: tuple[str, ...]


class Pass(Config):
    """A sweep that was launched under faults until it was done."""

    engine: str
    launches: tuple[Launch, ...]
    #: Whether the tidy table has the bytes of an undisturbed launch's.
    equal: bool
    #: Points of MLflow that are missing, superfluous, of another value, or there twice.
    points_unlike: int


class Record(Config):
    """A run of a suite."""

    suite: str
    quick: bool
    environment: Environment
    peak: Peak
    cases: tuple[CaseRecord, ...]
    #: The sweeps under faults, of `bench chaos` alone.
    passes: tuple[Pass, ...] = ()

    @property
    def compares(self) -> bool:
        """Whether any case has peers."""
        return any(case.comparisons for case in self.cases)

    def of_status(self, status: Status) -> list[str]:
        """Return the peers with a status, each after the key of its case."""
        return [
            f"{case.key}: {row.peer}"
            for case in self.cases
            for row in case.comparisons
            if row.status == status
        ]


def save(record: Record, path: Path) -> None:
    """Write a record as JSON; in a folder, into the file of its processor."""
    if path.is_dir():
        path = path / f"{record.environment.processor}.json"
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """Read a record; raises `ConfigError` for a file that is absent or holds no record."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; `raysweep bench SUITE --output FILE` writes one"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: no benchmark record: {where}: {first['msg']}") from error


def of_suite(suite: str, folder: Path = RESULTS) -> list[Record]:
    """Return the records of a suite, those of processors before those of GPUs, the newest of each first.

    Raises `ConfigError` where there is none.
    """
    found = [load(path) for path in sorted((folder / suite).glob("*.json"))]
    if not found:
        known = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir()))
        raise ConfigError(
            f"--suite: there is no record of '{suite}'{suggest(suite, known.split(', '))}; {known}"
        )
    found.sort(key=lambda record: record.environment.date, reverse=True)
    return sorted(found, key=lambda record: record.environment.gpu is not None)
