"""From a sweep file to runs: strict files, axes, identity, plan and the ledger of finished work.

Pure: no Ray, no MLflow.

    sweep = load_sweep("sweeps/scaling.yaml", overrides=["pretrain.steps=2000"])
    plan = make_plan(sweep)                    # runs: done / evaluate / resume / new / blocked / failed
    ledger = sweep.ledger()
    journal = ledger.run(sweep.runs[0])        # the run's records, to which training writes its checkpoints
    frame = tidy(ledger, sweep)                # raysweep.sweep.tidy: one row per run x milestone x metric

Names are imported when they are first used: most need torch, which the completion of a shell does without.
A function that is called as its module, such as `tidy`, is imported from that module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.sweep.config import LanguageCache, Sweep
    from raysweep.sweep.identity import arrays_identity, evaluation_identity
    from raysweep.sweep.ledger import Ledger, RunLedger
    from raysweep.sweep.load import load_sweep
    from raysweep.sweep.lock import SweepLock
    from raysweep.sweep.missing import Missing, missing_now
    from raysweep.sweep.plan import Item, Plan, RunPlan
    from raysweep.sweep.planner import make_plan
    from raysweep.sweep.records import EvaluationRecord, FailureRecord, RunRecord
    from raysweep.sweep.resources import Resources
    from raysweep.sweep.run import RunSpec
    from raysweep.sweep.starts import unfinished

_HOMES = {
    "EvaluationRecord": "records",
    "FailureRecord": "records",
    "Item": "plan",
    "LanguageCache": "config",
    "Ledger": "ledger",
    "Missing": "missing",
    "Plan": "plan",
    "Resources": "resources",
    "RunLedger": "ledger",
    "RunPlan": "plan",
    "RunRecord": "records",
    "RunSpec": "run",
    "Sweep": "config",
    "SweepLock": "lock",
    "arrays_identity": "identity",
    "evaluation_identity": "identity",
    "load_sweep": "load",
    "make_plan": "planner",
    "missing_now": "missing",
    "unfinished": "starts",
}

__all__ = [
    "EvaluationRecord",
    "FailureRecord",
    "Item",
    "LanguageCache",
    "Ledger",
    "Missing",
    "Plan",
    "Resources",
    "RunLedger",
    "RunPlan",
    "RunRecord",
    "RunSpec",
    "Sweep",
    "SweepLock",
    "arrays_identity",
    "evaluation_identity",
    "load_sweep",
    "make_plan",
    "missing_now",
    "unfinished",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"raysweep.sweep.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'raysweep.sweep' has no attribute '{name}'")
