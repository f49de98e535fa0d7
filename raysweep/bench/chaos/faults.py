"""The kinds of faults: signals to the processes of a launch, a full disk, and files that are torn or lost.

A fault finds its own target among the processes and files of one sweep and hits nothing else.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raysweep.bench.chaos import volume
from raysweep.processes import Process, title

#: Titles of the processes of a launch, as Ray sets them.
TRAIN_WORKER = r"ray::RayTrainWorker"
TRIAL = r"ray::ImplicitFunc"
CONTROLLER = r"ray::TrainController"
EVALUATION = r"ray::[\w/-]+@\d+"
GCS, RAYLET = r"gcs_server$", r"raylet$"
#: The fork server, its template, and a worker that it has just forked.
FORK_SERVER = r"python\S* -m raysweep\.engine\.forkserver"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The places that a fault can hit: a running launch, and the files of its sweep."""

    #: The folder of the sweep.
    directory: Path
    #: Draws targets and durations.
    random: random.Random
    #: The small file system that holds the folder, None without one.
    volume: Path | None = None
    #: The driver, and the function that lists all processes of its launch; None between launches.
    driver: subprocess.Popen[bytes] | None = None
    processes: Callable[[], Sequence[Process]] = tuple

    def find(self, pattern: str) -> list[tuple[Process, str]]:
        """Return the processes whose title begins with a pattern, with their titles."""
        titled = ((process, title(process.pid)) for process in self.processes())
        return [(process, text) for process, text in titled if re.match(pattern, text)]

    def wait(self, seconds: float) -> None:
        """Wait until the launch ends, `seconds` at most."""
        if self.driver is not None:
            with suppress(subprocess.TimeoutExpired):
                self.driver.wait(seconds)


class Fault(ABC):
    """A kind of fault."""

    #: The name of the kind in the record.
    name: str
    #: It hits at a random moment of so many seconds after its target has appeared.
    within: float

    @abstractmethod
    def ready(self, scene: Scene) -> bool:
        """Return whether there is a target now."""

    @abstractmethod
    def hit(self, scene: Scene) -> str | None:
        """Apply the fault and return what was hit; None if there is no target any more."""


@dataclass(frozen=True, kw_only=True)
class DriverSignal(Fault):
    """A signal to the process that was launched."""

    name: str
    signal: signal.Signals
    within: float = 25.0

    def ready(self, scene: Scene) -> bool:
        return scene.driver is not None

    def hit(self, scene: Scene) -> str | None:
        if scene.driver is None or scene.driver.poll() is not None:
            return None
        scene.driver.send_signal(self.signal)
        return "driver"


@dataclass(frozen=True, kw_only=True)
class Kill(Fault):
    """SIGKILL of one process with a title."""

    name: str
    title: str
    within: float

    def ready(self, scene: Scene) -> bool:
        return bool(scene.find(self.title))

    def hit(self, scene: Scene) -> str | None:
        found = scene.find(self.title)
        if not found:
            return None
        process, text = scene.random.choice(found)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
            return text
        return None


@dataclass(frozen=True, kw_only=True)
class Pause(Fault):
    """SIGSTOP of one process for some seconds, then SIGCONT."""

    name: str
    title: str
    seconds: tuple[float, float] = (2.0, 20.0)
    within: float = 10.0

    def ready(self, scene: Scene) -> bool:
        return bool(scene.find(self.title))

    def hit(self, scene: Scene) -> str | None:
        found = scene.find(self.title)
        if not found:
            return None
        process, text = scene.random.choice(found)
        seconds = scene.random.uniform(*self.seconds)
        try:
            os.kill(process.pid, signal.SIGSTOP)
        except ProcessLookupError:
            return None
        scene.wait(seconds)
        # Ray may have ended it meanwhile.
        if process.key in {other.key for other in scene.processes()}:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        return f"{text}, {seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class FullDisk(Fault):
    """No byte is free on the file system of the results, for some seconds."""

    name: str = "full disk"
    seconds: tuple[float, float] = (5.0, 30.0)
    within: float = 25.0

    def ready(self, scene: Scene) -> bool:
        return scene.volume is not None and scene.driver is not None

    def hit(self, scene: Scene) -> str | None:
        if scene.volume is None or scene.driver is None:
            return None
        seconds = scene.random.uniform(*self.seconds)
        volume.fill(scene.volume)
        try:
            scene.wait(seconds)
        finally:
            volume.empty(scene.volume)
        return f"file system of {volume.SIZE_MIB} MiB, {seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class FileLimit(Fault):
    """A worker may write no file of more than some hundred bytes, for some seconds."""

    name: str = "file size limit of a train worker"
    title: str = TRAIN_WORKER
    size: int = 512
    seconds: tuple[float, float] = (3.0, 15.0)
    within: float = 5.0

    def ready(self, scene: Scene) -> bool:
        return bool(scene.find(self.title))

    def hit(self, scene: Scene) -> str | None:
        found = scene.find(self.title)
        if not found:
            return None
        process, text = scene.random.choice(found)
        seconds = scene.random.uniform(*self.seconds)
        try:
            before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (self.size, before[1]))
        except ProcessLookupError:
            return None
        scene.wait(seconds)
        if process.key in {other.key for other in scene.processes()}:
            with suppress(ProcessLookupError):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
        return f"{text}, {seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class TornFile(Fault):
    """A file that matches a pattern in the sweep's folder loses its end."""

    name: str
    pattern: str
    within: float = 0.0

    def _files(self, scene: Scene) -> list[Path]:
        return sorted(path for path in scene.directory.glob(self.pattern) if path.stat().st_size)

    def ready(self, scene: Scene) -> bool:
        return bool(self._files(scene))

    def hit(self, scene: Scene) -> str | None:
        files = self._files(scene)
        if not files:
            return None
        path = scene.random.choice(files)
        size = path.stat().st_size
        kept = scene.random.randrange(size)
        os.truncate(path, kept)
        return f"{path.relative_to(scene.directory)}, {kept} of {size} bytes kept"


@dataclass(frozen=True, kw_only=True)
class LostFile(TornFile):
    """A file that matches a pattern in the sweep's folder is deleted."""

    def hit(self, scene: Scene) -> str | None:
        files = self._files(scene)
        if not files:
            return None
        path = scene.random.choice(files)
        path.unlink()
        return str(path.relative_to(scene.directory))


#: Faults that hit a running launch.
RUNNING: tuple[Fault, ...] = (
    DriverSignal(name="SIGKILL of the driver", signal=signal.SIGKILL),
    DriverSignal(name="SIGTERM to the driver", signal=signal.SIGTERM),
    DriverSignal(name="SIGINT to the driver", signal=signal.SIGINT),
    DriverSignal(name="SIGHUP to the driver", signal=signal.SIGHUP),
    Kill(name="SIGKILL of a train worker", title=TRAIN_WORKER, within=8.0),
    Kill(name="SIGKILL of a trial actor", title=TRIAL, within=10.0),
    Kill(name="SIGKILL of a TrainController", title=CONTROLLER, within=10.0),
    # Evaluations are short.
    Kill(name="SIGKILL of an evaluation's worker", title=EVALUATION, within=0.5),
    Kill(name="SIGKILL of the GCS", title=GCS, within=20.0),
    Kill(name="SIGKILL of the raylet", title=RAYLET, within=20.0),
    Kill(name="SIGKILL of the fork server", title=FORK_SERVER, within=15.0),
    Pause(name="SIGSTOP of a train worker", title=TRAIN_WORKER),
    FullDisk(),
    FileLimit(),
)

#: Faults that hit the files of a sweep that nobody launches at the moment.
BETWEEN: tuple[Fault, ...] = (
    TornFile(name="torn checkpoint", pattern="runs/*/checkpoints/step-*/*"),
    TornFile(name="torn record", pattern="runs/*/records/*.json"),
    TornFile(name="torn shard", pattern="runs/*/arrays/*/*.npz"),
    TornFile(name="torn MLflow database", pattern="mlflow.db"),
    LostFile(name="lost MLflow database", pattern="mlflow.db"),
)


class Deck:
    """Kinds of faults in random order: each comes once before any comes again."""

    def __init__(self, kinds: Sequence[Fault], draws: random.Random) -> None:
        self._kinds, self._random = list(kinds), draws
        self._left: list[Fault] = []

    def draw(self) -> Fault:
        """Return the next kind."""
        if not self._left:
            self._left = self._shuffled()
        return self._left.pop()

    def _shuffled(self) -> list[Fault]:
        return self._random.sample(self._kinds, len(self._kinds))

    def put_back(self, fault: Fault) -> None:
        """Let a kind that found no target come again, after the others."""
        if not self._left:
            self._left = [kind for kind in self._shuffled() if kind is not fault]
        self._left.insert(0, fault)
