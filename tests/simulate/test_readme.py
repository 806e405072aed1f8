"""The tables of workbench/simulate/README.md are what the commands beside them print."""

from pathlib import Path

import pytest

from workbench.analysis.workers import completed
from workbench.experiments.simulation import MissesConfig, load_routes, misses_table
from workbench.paths import data_folder
from workbench.simulate.machines import beside_reports, session_keys
from workbench.simulate.planner import load_machines

README = Path(__file__).parents[2] / "workbench" / "simulate" / "README.md"


def table(title):
    """Cells of the first table under a heading, without its head."""
    lines = README.read_text().split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def reported():
    return [each for each in load_machines(data_folder() / "machines").values() if each.reported_tps is not None]


def test_every_reported_machine_has_its_row():
    assert [row[0] for row in table("Tokens/s by machine")] == [machine.name for machine in reported()]


@pytest.mark.soak
def test_tokens_per_second_by_machine():
    keys = session_keys()
    found = dict(completed(beside_reports, [(machine, keys) for machine in reported()]))
    for index, row in enumerate(table("Tokens/s by machine")):
        now = found[index]
        ends = f"{now['twin_low_tps']:.2g} to {now['twin_high_tps']:.2g}"
        assert row[1:] == [f"{now['reported_tps']:.2g}", f"{now['twin_tps']:.2g}", ends, "yes" if now["covered"] else "no"]


@pytest.mark.soak
@pytest.mark.parametrize("source", ["flash-next-like", "loop", "scan"])
def test_policies(source):
    config = MissesConfig.build({"routes": {"source": source}})
    misses = {
        (row["policy"], f"{row['share_of_records']:.1%}"): row["misses_per_token"]
        for row in misses_table(load_routes(config.routes), config)
    }
    rows = [row for row in table("Policies") if row[0] == source]
    assert rows
    for _, share, *cells in rows:
        for policy, cell in zip(config.policies, cells, strict=True):
            assert cell.split(" ")[0] == f"{misses[policy, share]:.1f}", (policy, share)
