"""Free the resources of a Ray Train job after its controller was killed, without Ray's dashboard.

Ray removes the placement group of a job that ends.  If the controller is killed, an actor removes it that
watches the controller, once a second, through the dashboard.  The dashboard costs seconds of a launch, ten
processes and some hundred MB, and nobody else needs it here.  So this actor asks Ray's control store.

The classes below change two names inside Ray Train, each in a process of its own: the controller's, and that
of the actor.
"""

from __future__ import annotations

import logging
from typing import Any

from ray.train.v2._internal.callbacks import placement_group_callback as callbacks
from ray.train.v2._internal.execution.controller import placement_group_cleaner as cleaners

log = logging.getLogger("raysweep")


def alive(actor_id: str, timeout: float) -> bool:
    """Return False for an actor that Ray's control store knows as dead, and True if it does not answer.

    Ray Train passes a `timeout` for the dashboard, which the control store does not need.
    """
    from ray._private import state  # of no public name without the dashboard

    try:
        found = state.actors(actor_id)
    except Exception:
        log.exception("the control store does not answer")
        return True
    return not found or found["State"] != "DEAD"


class Cleaner(cleaners.PlacementGroupCleaner):
    """The actor of Ray Train, which asks the control store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cleaners.is_actor_alive = alive
        super().__init__(*args, **kwargs)


class CleanerCallback(callbacks.PlacementGroupCleanerCallback):
    """The callback of Ray Train, which starts a `Cleaner`."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Start the actor."""
        callbacks.PlacementGroupCleaner = Cleaner  # type: ignore[misc]
        super().after_controller_start(train_run_context)
