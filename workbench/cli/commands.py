"""The list of command modules; a new one adds its line here."""

from cyclopts import App

from workbench.cli import doctor, evidence, gates, generation, geometry, simulate, stores, track


def register(app: App) -> None:
    """Registers every command on `app`."""
    doctor.register(app)
    geometry.register(app)
    stores.register(app)
    generation.register(app)
    gates.register(app)
    simulate.register(app)
    evidence.register(app)
    track.register(app)
