"""Verdicts, which of them are superseded, and one page with all results."""

from workbench.report.page import write_report
from workbench.report.verdicts import VerdictEntry, collect_verdicts

__all__ = ["VerdictEntry", "collect_verdicts", "write_report"]
