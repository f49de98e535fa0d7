"""The report of a sweep: statistics, tables and figures on one HTML page.

This room reads measurements and measures nothing.  It needs neither Ray nor MLflow.
"""

from raysweep.report.claims import sweep_verdicts
from raysweep.report.page import Content, Failure, render
from raysweep.report.summary import Summary, summary
from raysweep.report.verdict import Verdict
from raysweep.report.write import write_figures, write_report, write_several

__all__ = [
    "Content",
    "Failure",
    "Summary",
    "Verdict",
    "render",
    "summary",
    "sweep_verdicts",
    "write_figures",
    "write_report",
    "write_several",
]
