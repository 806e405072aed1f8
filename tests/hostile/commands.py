"""Damage of every kind against every command of the command line: a command that joins the registry is tried as well."""

import re
from dataclasses import dataclass

from workbench.cli import app, commands

commands.register(app)

SMALL = {
    "pack": "pack {model} --out {tmp}/packed",
    "slice": "slice --layers 1 --out {tmp}/slice --set experts=8",
    "verify": "verify {store}",
    "generate": "generate --prompt ab --max-tokens 1 --cache-bytes 8MiB --bandwidth-gbps 1 --set attribution_tokens=0",
    "trace": "trace --requests 1 --tokens 1",
    "gate": "gate --help",
    "notebook": "notebook --help",
    "simulate misses": "simulate misses {routes} --set fractions=[0.5]",
    "simulate twin": "simulate twin --set routes.tokens=1 --set routes.layers=2",
    "simulate sweep": "simulate sweep --help",
    "simulate validate": "simulate validate --help",
    "simulate routes": "simulate routes loop --out {tmp}/loop.parquet --set layers=2 --set experts=16",
    "simulate import": "simulate import {rows} --layers 2 --experts 16 --top-k 2 --out {tmp}/theirs.parquet",
    "timeline": "timeline {run} --token 0",
    "bench io": "bench io --help",
    "bench modes": "bench modes --help",
    "abba": "abba --help",
    "report": "report --out {tmp}/report.html",
    "bundle": "bundle {run} --out {tmp}/run.bundle.tar",
    "check": "check {bundle}",
}
"""Command lines on small input, where the example of a command's help is long or names files that are not here."""


def every_command(group=app, path=()):
    """Words of each registered command, groups left out."""
    for name in group:
        if not name.startswith("-"):
            children = list(every_command(group[name], (*path, name)))
            yield from children or [" ".join((*path, name))]


def example_of(command):
    """The example in the help of a command, without the program's name."""
    found = app
    for word in command.split():
        found = found[word]
    return re.search(r"Example: workbench (.+)", found.default_command.__doc__).group(1)


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    status: int | None
    """Exit status; None: an exception escaped, which people would see as a traceback."""
    out: str
    err: str

    def check(self):
        """Fails unless the command ended as people may expect: a status of its own, and no traceback anywhere."""
        assert self.status is not None, self.err
        assert self.status in (0, 1, 2, 3, 4, 130, 141), self.status
        assert "Traceback" not in self.out + self.err, self.err
        if self.status in (2, 3):
            last = self.err.strip().splitlines()[-1]
            assert last.startswith("workbench: "), self.err


def line_of(command, **values):
    """A command line of `command` on small input; `values` fill its placeholders."""
    return SMALL.get(command, example_of(command)).format(**values)
