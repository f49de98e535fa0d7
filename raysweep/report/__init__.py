"""The report of a sweep: statistics, tables and figures on one HTML page.

This room reads measurements and measures nothing.  It needs neither Ray nor MLflow.

Names are imported when they are first used: most need matplotlib, which the tables of a terminal do without.
A function that is called as its module, such as `summary`, is imported from that module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.report.claims import sweep_verdicts
    from raysweep.report.page import Content, Failure, render
    from raysweep.report.summary import Summary
    from raysweep.report.verdict import Verdict
    from raysweep.report.write import write_figures, write_report, write_several

_HOMES = {
    "Content": "page",
    "Failure": "page",
    "Summary": "summary",
    "Verdict": "verdict",
    "render": "page",
    "sweep_verdicts": "claims",
    "write_figures": "write",
    "write_report": "write",
    "write_several": "write",
}

__all__ = [
    "Content",
    "Failure",
    "Summary",
    "Verdict",
    "render",
    "sweep_verdicts",
    "write_figures",
    "write_report",
    "write_several",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"raysweep.report.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'raysweep.report' has no attribute '{name}'")
