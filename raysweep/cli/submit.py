"""`raysweep submit`: a launch as a job of a Ray cluster, which outlives this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli.elsewhere import shared_storage, sweep_name
from raysweep.cli.options import (
    FileArgument,
    JsonOption,
    OnlyOption,
    RetryOption,
    SetOption,
    TrackingOption,
    print_json,
)
from raysweep.cli.output import say
from raysweep.errors import ConfigError

if TYPE_CHECKING:
    from raysweep.sweep import Sweep
    from raysweep.sweep.shipment import Shipment


class Recipe(StrEnum):
    """The recipes that `--print` writes."""

    KUBERAY = "kuberay"
    KUBERAY_CLUSTER = "kuberay-cluster"
    SLURM = "slurm"


def submit(
    file: FileArgument,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="URL",
            envvar="RAY_API_SERVER_ADDRESS",
            help="Dashboard of the Ray cluster, e.g. http://HEAD:8265.",
        ),
    ] = None,
    set_: SetOption = None,
    only: OnlyOption = None,
    retry_failed: RetryOption = False,
    notify: Annotated[
        list[str] | None,
        typer.Option("--notify", metavar="COMMAND|URL", help="As of `raysweep launch`, on the cluster."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="DIR",
            envvar="RAYSWEEP_STORAGE",
            help="Folder of all sweeps, as every node of the cluster sees it.",
        ),
    ] = None,
    tracking_uri: TrackingOption = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Check the file here; or leave that to the cluster where only it sees what the file names.",
        ),
    ] = True,
    print_: Annotated[
        Recipe | None,
        typer.Option(
            "--print",
            metavar="RECIPE",
            help="Send nothing, and print what makes a cluster for this sweep: KubeRay's manifest of a job "
            "(kuberay), or of a cluster that takes jobs (kuberay-cluster), or a Slurm script (slurm).",
        ),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", help="With --print kuberay: container image with raysweep.")
    ] = "IMAGE",
    claim: Annotated[
        str, typer.Option("--claim", help="With --print kuberay: volume claim of the storage, ReadWriteMany.")
    ] = "raysweep-results",
    nodes: Annotated[
        int, typer.Option("--nodes", metavar="N", min=1, help="With --print: most nodes that work at once.")
    ] = 8,
    json: JsonOption = False,
) -> None:
    """Launch a sweep as a job of a Ray cluster, which goes on without this machine.

    The file and those that it extends are sent; raysweep and all else must be on the cluster.  This prints
    the job's id and how to follow it, waits until the launch has begun, and fails if that fails.  A sweep
    that was stopped goes on when it is submitted again.

    Examples:

        raysweep submit sweeps/scaling.yaml --address http://HEAD:8265 --storage /shared/results

        raysweep submit sweeps/scaling.yaml --storage /shared/results --print kuberay --image IMAGE > job.yaml

        raysweep submit sweeps/scaling.yaml --storage /shared/results --print slurm --nodes 4 > job.sh
    """
    from raysweep.sweep.notice import check_notify
    from raysweep.sweep.shipment import Shipment

    needed = []
    if print_ is None and address is None:
        needed.append(
            "--address (or RAY_API_SERVER_ADDRESS): name the cluster's dashboard, e.g. http://HEAD:8265; "
            "--print makes a cluster"
        )
    try:
        place = shared_storage(storage)
    except ConfigError as error:
        needed.append(str(error))
    if needed:
        raise ConfigError("\n".join(needed))
    check_notify(notify or ())
    given = {"--set": set_, "--only": only, "--notify": notify, "--tracking-uri": [tracking_uri]}
    words = [word for name, each in given.items() for one in each or () if one for word in (name, one)]
    words += ["--retry-failed"] * retry_failed + ["--storage", place]
    shipment = Shipment.of(file)
    sweep = _checked(file, place, set_, only, tracking_uri) if check or print_ else None
    if sweep is not None and print_ is not None:
        from raysweep.engine.recipes import Recipes

        recipes = Recipes(sweep, shipment, words, place, image=image, claim=claim, nodes=nodes)
        typer.echo(getattr(recipes, print_.name.lower())(), nl=False)
    elif address is not None:
        name = sweep_name(file, set_ or ()) if sweep is None else sweep.name
        _submit(shipment, name, words, address, place, json=json)


def _checked(
    file: Path, storage: str, overrides: list[str] | None, only: list[str] | None, tracking: str | None
) -> Sweep:
    """Return the sweep of a file as the cluster should find it.

    Raises `ConfigError` for what `raysweep plan` refuses, and for paths that mean nothing on a cluster.
    """
    from raysweep.sweep import load_sweep
    from raysweep.sweep.shipment import local_paths
    from raysweep.sweep.stored import select

    sweep = load_sweep(file, overrides or (), storage=storage, tracking_uri=tracking)
    sweep = select(sweep, only)
    relative, absolute = local_paths(sweep)
    if relative:
        raise ConfigError(
            f"{file}: names what is on this machine alone: {', '.join(relative)}; copy it to where all nodes "
            "of the cluster see it, and name it by its absolute path there (with --no-check, if this machine "
            "does not see it)"
        )
    if absolute:
        say(f"these must be on every node of the cluster under the same path: {', '.join(absolute)}")
    return sweep


def _submit(
    shipment: Shipment, name: str, words: Sequence[str], address: str, storage: str, *, json: bool
) -> None:
    """Send a sweep, say how to follow it, wait until its launch has begun, and fail if that does."""
    from raysweep.engine.jobs import JobServer

    server = JobServer(address)
    with TemporaryDirectory() as folder:
        shipment.copy(Path(folder))
        launch = ["raysweep", "launch", str(shipment.files[0]), *words]
        job = server.submit(launch, name=name, folder=Path(folder))
    where = f" --address {shlex.quote(address)} --storage {shlex.quote(storage)}"
    follow = {
        "status": f"raysweep status {name}{where}",
        "logs": f"raysweep logs {name} -f{where}",
        "cancel": f"raysweep cancel {name}{where}",
    }
    if json:
        print_json({"job": job, "sweep": name, "address": address, "storage": storage, **follow})
    else:
        typer.echo("\n".join([f"job {job} at {address}", *(f"  {line}" for line in follow.values())]))
    say("waiting until its launch has begun; it goes on without this command")
    try:
        code = server.wait_until_begun(job, say)
    except KeyboardInterrupt:
        say("no longer waiting; the job goes on")
        raise typer.Exit(130) from None
    if code is None:
        say("the launch is at work")
    elif code:
        say(f"the job has ended with exit code {code}; its last words are above")
        raise typer.Exit(code)
    else:
        say("the job has ended: nothing was left to do")
