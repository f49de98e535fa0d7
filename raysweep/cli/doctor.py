"""`raysweep doctor`."""

from __future__ import annotations

import typer

from raysweep.cli.options import AddressOption, JsonOption, StorageOption, TrackingOption, print_json
from raysweep.errors import StorageError


def doctor(
    address: AddressOption = None,
    storage: StorageOption = None,
    tracking_uri: TrackingOption = None,
    json: JsonOption = False,
) -> None:
    """Check what a launch needs: versions, processor, memory, GPUs, kernels, Ray, storage and MLflow.

    Each line says ok, warn or fail, and what to do about it.  Nothing is started.  The exit code is 4 where
    something fails.

    Examples:

        raysweep doctor

        raysweep doctor --address 10.0.0.1:6379 --storage /shared/sweeps
    """
    from raysweep.engine.doctor import examine, healthy

    found = []
    for finding in examine(storage=storage, address=address, tracking_uri=tracking_uri):
        found.append(finding)
        if not json:
            typer.echo(finding)
    if json:
        print_json({"ok": healthy(found), "findings": [finding.to_dict() for finding in found]})
    if not healthy(found):
        raise typer.Exit(StorageError.exit_code)
