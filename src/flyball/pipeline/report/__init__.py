"""Reports that a person wants to read: one HTML file that opens offline, from what an analysis found.

It reads an analysis and its own assets, nothing else: no Spark and no files of results.
"""

from __future__ import annotations

from flyball.pipeline.report.comparison import write_comparison
from flyball.pipeline.report.report import write_report

__all__ = ["write_comparison", "write_report"]
