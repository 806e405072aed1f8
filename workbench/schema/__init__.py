"""Shared formats and their versions: metrics, events, route traces, verdicts, result folders."""

from workbench.schema.events import EVENT_SCHEMA, EVENTS_VERSION, EventLog, fingerprint, read_events
from workbench.schema.metrics import METRICS, Metric, check_metric_names
from workbench.schema.results import RESULT_VERSION, Evidence, Result, RunFolder, Status, list_runs
from workbench.schema.routes import ROUTE_SCHEMA, ROUTES_VERSION, read_routes, write_routes
from workbench.schema.verdicts import Criterion, Outcome, Verdict, decide

__all__ = [
    "EVENTS_VERSION",
    "EVENT_SCHEMA",
    "METRICS",
    "RESULT_VERSION",
    "ROUTES_VERSION",
    "ROUTE_SCHEMA",
    "Criterion",
    "EventLog",
    "Evidence",
    "Metric",
    "Outcome",
    "Result",
    "RunFolder",
    "Status",
    "Verdict",
    "check_metric_names",
    "decide",
    "fingerprint",
    "list_runs",
    "read_events",
    "read_routes",
    "write_routes",
]
