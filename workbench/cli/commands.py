"""The list of command modules; a new one adds its line here."""

from importlib import import_module

from cyclopts import App

_MODULES = {
    "doctor": ("doctor",),
    "geometry": ("geometry",),
    "stores": ("pack", "slice", "verify"),
    "generation": ("generate", "trace"),
    "gates": ("gate", "notebook"),
    "simulate": ("simulate",),
    "timeline": ("timeline",),
    "plan": ("plan",),
    "bench": ("bench",),
    "evidence": ("abba", "verdicts", "report", "bundle", "check"),
    "track": ("track", "ui", "lab"),
}
"""Modules of this package and the commands that each registers."""


def register(app: App, word: str | None = None) -> None:
    """Registers the module of command `word` alone (the others cost half a second), or all when no module has it."""
    wanted = [module for module, commands in _MODULES.items() if word in commands]
    for module in wanted or _MODULES:
        import_module(f"workbench.cli.{module}").register(app)
