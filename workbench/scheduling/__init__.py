"""Who goes first: tickets, queue, lanes, slots. Pure decisions: no tensors, threads, files or clocks of its own."""

from workbench.scheduling.demand import Answer, Demand, PredictedKey, Prediction
from workbench.scheduling.lanes import Budget, LaneConfig, SchedulerConfig
from workbench.scheduling.pool import DOWN_BIT, GATE_BIT, GATE_UP_BITS, PAGE_BIT, RECORD_BITS, UP_BIT, Counters, Pool
from workbench.scheduling.queue import Order
from workbench.scheduling.scheduler import Scheduler
from workbench.scheduling.slots import EvictionPolicy, Loan, SlotTable
from workbench.scheduling.ticket import NEVER_NS, WHOLE_TILE, Event, Intent, Outcome, Priority, Scope, Ticket, TicketState

__all__ = [
    "DOWN_BIT",
    "GATE_BIT",
    "GATE_UP_BITS",
    "NEVER_NS",
    "PAGE_BIT",
    "RECORD_BITS",
    "UP_BIT",
    "WHOLE_TILE",
    "Answer",
    "Budget",
    "Counters",
    "Demand",
    "Event",
    "EvictionPolicy",
    "Intent",
    "LaneConfig",
    "Loan",
    "Order",
    "Outcome",
    "Pool",
    "PredictedKey",
    "Prediction",
    "Priority",
    "Scheduler",
    "SchedulerConfig",
    "Scope",
    "SlotTable",
    "Ticket",
    "TicketState",
]
