"""What results come to: verdicts with what superseded them, and one page that shows all of it."""

from workbench.report.page import write_report
from workbench.report.verdicts import VerdictEntry, collect_verdicts

__all__ = ["VerdictEntry", "collect_verdicts", "write_report"]
