"""The rejected shortcut of AFN-019 as a control: all experts of the next layer, whatever the router will say."""

from workbench.geometry import Geometry
from workbench.runtime.step import Step
from workbench.runtime.transfer import Transfer
from workbench.scheduling.ticket import Priority, Ticket


class NextLayer:
    """Predicts the whole next layer within the budgets of P2; what was not read when its layer has come is withdrawn."""

    def __init__(self, geometry: Geometry, transfer: Transfer, step: Step) -> None:
        self._geometry, self._transfer, self._step = geometry, transfer, step
        self._predicted: tuple[Ticket, ...] = ()

    def follow(self, layer: int) -> None:
        """The exact records of `layer` were demanded: predicts those of the next one."""
        for ticket in self._predicted:
            if not ticket.issued:
                self._transfer.scheduler.cancel_ticket(ticket)
        self._predicted = ()
        if layer + 1 < self._geometry.num_hidden_layers:
            first_key = (layer + 1) * self._geometry.num_experts
            keys = range(first_key, first_key + self._geometry.num_experts)
            self._predicted = self._transfer.prefetch("expert", keys, self._step.event(layer + 1), Priority.P2).tickets
