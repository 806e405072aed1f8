"""What the pass under way is, for events."""

from dataclasses import dataclass

from workbench.scheduling.ticket import Event


@dataclass(slots=True)
class Step:
    """What the pass under way is, for events: set by the session before each pass."""

    request: int = 0
    phase: str = "prefill"
    position: int = 0

    def event(self, layer: int) -> Event:
        """The event of `layer` in this pass."""
        return Event(request=self.request, phase=self.phase, layer=layer)
