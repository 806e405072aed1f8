"""Which read is next and which slot it fills. Pure decisions: no tensors, threads, files or clocks of its own."""

from workbench.scheduling.limits import Budget, ReadLimits, SchedulerConfig
from workbench.scheduling.pool import DOWN_BIT, GATE_BIT, GATE_UP_BITS, PAGE_BIT, RECORD_BITS, UP_BIT, Counters, Pool
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import EvictionPolicy, Loan, SlotTable
from workbench.scheduling.ticket import (
    NEVER_NS,
    WHOLE_TILE,
    Demand,
    Intent,
    Order,
    Origin,
    PredictedKey,
    PrefetchResult,
    Priority,
    RequestStatus,
    Scope,
    Ticket,
    TicketState,
    Usefulness,
)

__all__ = [
    "DOWN_BIT",
    "GATE_BIT",
    "GATE_UP_BITS",
    "NEVER_NS",
    "PAGE_BIT",
    "RECORD_BITS",
    "UP_BIT",
    "WHOLE_TILE",
    "Budget",
    "Counters",
    "Demand",
    "EvictionPolicy",
    "Intent",
    "Loan",
    "Order",
    "Origin",
    "Pool",
    "PredictedKey",
    "PrefetchResult",
    "Priority",
    "ReadLimits",
    "RequestStatus",
    "Scheduler",
    "SchedulerConfig",
    "Scope",
    "SlotTable",
    "Ticket",
    "TicketState",
    "Usefulness",
]
