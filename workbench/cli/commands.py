"""The list of command modules; a new one adds its line here."""

from cyclopts import App

from workbench.cli import stores


def register(app: App) -> None:
    """Registers every command on `app`."""
    stores.register(app)
