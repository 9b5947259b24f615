"""Reports for people: one HTML file that opens offline, made from the results of an analysis.

It reads only an analysis and its own assets: no Spark and no result files.
"""

from __future__ import annotations

from flyball.pipeline.report.comparison import write_comparison
from flyball.pipeline.report.report import write_report

__all__ = ["write_comparison", "write_report"]
