"""A look at a Ray cluster before Ray connects to it.

Ray itself tries again and again for many minutes where nobody answers, and takes a dozen lines to name a
version that does not fit.
"""

from __future__ import annotations

import json
import platform
import socket
import time
from typing import NoReturn

import ray

from raysweep.errors import ConfigError, StorageError

#: Seconds in which a cluster's control store must answer.
LIMIT = 10.0


def check_cluster(address: str, limit: float = LIMIT) -> None:
    """Check that a Ray of this version answers at `address` within `limit` seconds.

    The port must be open, the control store must answer, and its versions of Ray and Python must be those
    that Ray accepts.  Of `auto`, `local` and addresses of a Ray client nothing is checked: Ray finds those.

    Raises `ConfigError` for an address that is none, `StorageError` for all else.
    """
    if address in ("auto", "local") or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise ConfigError(f"--address '{address}' (or RAY_ADDRESS) is not HOST:PORT, e.g. 10.0.0.1:6379")
    end = time.monotonic() + limit
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=limit).close()
    except TimeoutError:
        _refuse(address, f"nothing answers there within {limit:g} s")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        _refuse(address, f"nothing listens there ({reason or error})")
    _check_versions(address, _metadata(address, end - time.monotonic(), limit))


def _metadata(address: str, left: float, limit: float) -> dict[str, str]:
    """Return what a cluster's control store says of itself within `left` seconds."""
    # Ray has no public call that gives up: its own client tries again for minutes, and then ends the process.
    import grpc
    from ray._private.gcs_utils import create_gcs_channel
    from ray.core.generated.gcs_service_pb2 import InternalKVGetRequest  # type: ignore[attr-defined]
    from ray.core.generated.gcs_service_pb2_grpc import InternalKVGcsServiceStub

    asked = InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA")
    channel = create_gcs_channel(address)
    try:
        answer = InternalKVGcsServiceStub(channel).InternalKVGet(asked, timeout=max(left, 0.1))
        found = json.loads(answer.value)
        return {key: str(found[key]) for key in ("ray_version", "python_version")}
    except grpc.RpcError as error:
        code = error.code()
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            _refuse(
                address,
                "it asks for a token that this process does not give: set RAY_AUTH_MODE=token, and copy the "
                "token of its head to ~/.ray/auth_token here",
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            _refuse(address, f"something listens there, but no Ray has answered within {limit:g} s")
        _refuse(address, "something else than Ray's control store listens there")
    except (ValueError, KeyError, TypeError):
        _refuse(address, "its control store does not say its version")
    finally:
        channel.close()


def _check_versions(address: str, theirs: dict[str, str]) -> None:
    # A setting of Ray says which versions of Python fit.
    from ray._private.utils import check_version_info

    try:
        check_version_info(theirs, "this machine")
    except RuntimeError:
        raise StorageError(
            f"the Ray cluster at {address} has Ray {theirs['ray_version']} and Python "
            f"{theirs['python_version']}, but this machine has Ray {ray.__version__} and Python "
            f"{platform.python_version()}; install the same versions on both"
        ) from None


def _refuse(address: str, reason: str) -> NoReturn:
    raise StorageError(
        f"the Ray cluster at {address} cannot be reached: {reason} "
        "(check --address / RAY_ADDRESS, or leave both out to run on this machine)"
    )
