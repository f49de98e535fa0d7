"""The report of a sweep: tidy tables, statistics, figures, and one HTML page.

Reads what was measured and measures nothing; needs neither Ray nor MLflow.
"""

from raysweep.report.page import Content, Failure, render
from raysweep.report.statistics import Interval, cluster_bootstrap, partial_spearman, spearman
from raysweep.report.summary import summary_rows
from raysweep.report.write import write_report

__all__ = [
    "Content",
    "Failure",
    "Interval",
    "cluster_bootstrap",
    "partial_spearman",
    "render",
    "spearman",
    "summary_rows",
    "write_report",
]
