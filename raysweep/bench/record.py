"""What a benchmark leaves: a JSON file with all figures, their spread, goals and where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ValidationError

from raysweep.errors import ConfigError
from raysweep.registry import Config

#: Committed records, one a suite.
RESULTS = Path(__file__).parent / "results"

#: How a goal reads its figure.
Sense = Literal["at least", "at most"]

#: Which time counts: that of all threads of the process, or that on the wall where a GPU does the work.
Clock = Literal["cpu", "wall"]


class Spread(Config):
    """Median and quartiles over repeats."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Return the spread of at least one value.

        >>> Spread.of([3.0, 1.0, 2.0]).median
        2.0
        """
        lower, median, upper = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(median=median, lower=lower, upper=upper)


class Goal(Config):
    """What a figure should be."""

    sense: Sense
    value: float

    def met(self, value: float) -> bool:
        """Tell whether a figure reaches the goal."""
        return value >= self.value if self.sense == "at least" else value <= self.value


class Timing(Config):
    """Seconds a unit of work, over `repeats` calls that did `units` of them each."""

    units: float
    repeats: int
    cpu_seconds: Spread
    wall_seconds: Spread
    clock: Clock = "cpu"

    @property
    def seconds(self) -> Spread:
        """The time that counts."""
        return self.cpu_seconds if self.clock == "cpu" else self.wall_seconds


class Check(Config):
    """How far a peer's results are from raysweep's, looked at before anything is timed."""

    quantity: str
    value: float | None
    tolerance: float
    passed: bool


class Comparison(Config):
    """A peer beside raysweep.

    `status`: `equal` and timed; `unequal`, known to be so for `reason`, and timed all the same; `failed`, not
    equal although it should be, and not timed; `absent`, not installed or unable to do the work.  Ratios are
    the peer's time a unit divided by raysweep's, from the same round each.
    """

    peer: str
    status: Literal["equal", "unequal", "failed", "absent"]
    reason: str | None = None
    note: str | None = None
    check: Check | None = None
    timing: Timing | None = None
    cpu_ratio: Spread | None = None
    wall_ratio: Spread | None = None
    goal: Goal | None = None

    @property
    def ratio(self) -> Spread | None:
        """The ratio of the times that count; None where nothing was timed."""
        return self.cpu_ratio if self.timing is None or self.timing.clock == "cpu" else self.wall_ratio

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or a ratio."""
        if self.goal is None or self.ratio is None:
            return None
        return self.goal.met(self.ratio.median)


class Figure(Config):
    """A number of raysweep alone."""

    name: str
    unit: str
    value: float
    goal: Goal | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.goal.met(self.value)


class CaseRecord(Config):
    """One piece of work: raysweep's time for it, its peers, and further figures."""

    key: str
    work: str
    unit: str
    #: None where raysweep itself cannot do the work here, for `reason`.
    timing: Timing | None = None
    reason: str | None = None
    comparisons: tuple[Comparison, ...] = ()
    figures: tuple[Figure, ...] = ()


class Peak(Config):
    """What the machine gives to code that does nothing else, measured in the same run on the same threads.

    Where the suite runs on a GPU it is what that gives.
    """

    gemm_float32_gflops: float
    gemm_float64_gflops: float
    #: None in records of suites that have no use for it.
    gemm_bfloat16_gflops: float | None = None
    copy_gbytes: float


class Environment(Config):
    """Where a record was measured."""

    date: str
    cpu: str
    cpu_capability: str
    cores: int
    memory_gib: float
    threads: int
    #: The GPU that the suite ran on; None for one that ran on the processor.
    gpu: str | None = None
    system: str
    python: str
    versions: dict[str, str]
    commit: str | None
    dirty: bool | None


class Record(Config):
    """A run of a suite."""

    suite: str
    quick: bool
    environment: Environment
    peak: Peak
    cases: tuple[CaseRecord, ...]

    @property
    def failures(self) -> list[str]:
        """Peers that turned out not to be equal, by case."""
        return [
            f"{case.key}: {row.peer}"
            for case in self.cases
            for row in case.comparisons
            if row.status == "failed"
        ]


def save(record: Record, path: Path) -> None:
    """Write a record as JSON."""
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Record:
    """Read a record; raises `ConfigError` for a file that is absent or is none."""
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
