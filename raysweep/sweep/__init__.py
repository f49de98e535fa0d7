"""From a sweep file to runs: strict files, axes, identity, plan and the ledger of finished work.

Pure: no Ray, no MLflow.

    sweep = load_sweep("sweeps/scaling.yaml", overrides=["pretrain.steps=2000"])
    plan = make_plan(sweep)                    # runs: done / evaluate / resume / new / blocked / failed
    ledger = sweep.ledger()
    journal = ledger.run(sweep.runs[0])        # the run's records, to which training writes its checkpoints
    frame = tidy(ledger, sweep)                # one row per run x milestone x metric
"""

from raysweep.sweep.config import LanguageCache, Sweep
from raysweep.sweep.identity import arrays_identity, evaluation_identity
from raysweep.sweep.ledger import Ledger, RunLedger
from raysweep.sweep.load import load_sweep
from raysweep.sweep.lock import SweepLock
from raysweep.sweep.missing import Missing, missing, missing_now
from raysweep.sweep.plan import Item, Plan, RunPlan, make_plan
from raysweep.sweep.records import EvaluationRecord, FailureRecord, RunRecord
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.starts import unfinished
from raysweep.sweep.tidy import tidy

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
    "missing",
    "missing_now",
    "tidy",
    "unfinished",
]
