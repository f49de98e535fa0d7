"""The report of a sweep: statistics, tables and figures on one HTML page.

This room reads measurements and measures nothing.  It needs neither Ray nor MLflow.
"""

from raysweep.report.page import Content, Failure, render
from raysweep.report.statistics import Interval, cluster_bootstrap, partial_spearman, spearman
from raysweep.report.summary import Summary, summary
from raysweep.report.write import write_figures, write_report, write_several

__all__ = [
    "Content",
    "Failure",
    "Interval",
    "Summary",
    "cluster_bootstrap",
    "partial_spearman",
    "render",
    "spearman",
    "summary",
    "write_figures",
    "write_report",
    "write_several",
]
