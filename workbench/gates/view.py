"""What notebooks show: tables, figures and the verdict of a run, loaded from its folder."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from IPython.display import HTML, Markdown

from workbench.bounds import bandwidth_bound_tps
from workbench.gates import all_gates, find_gate
from workbench.gates.base import run_gate
from workbench.gates.overview import criterion_row, overview_rows
from workbench.gates.traces import profile_geometry
from workbench.markdown import markdown_table
from workbench.paths import PROFILES, runs_folder
from workbench.schema import RunFolder, list_runs
from workbench.units import GB, format_bytes

_BANDWIDTHS_GBPS = (1, 3, 7, 14)


def results_root(runs: str = "") -> Path:
    """The folder of results: `runs` if a notebook has that parameter, else the default folder."""
    return Path(runs) if runs else runs_folder()


def gate_run(name: str, *, profile: str = "mini", smoke: bool = False, settings: Sequence[str] = (), runs: str = "") -> RunFolder:
    """The gate's run at these settings: loaded when a fresh one exists, else run now."""
    gate = find_gate(name)
    config = gate.configure(profile=profile, smoke=smoke, settings=settings)
    return run_gate(gate, config, root=results_root(runs), anyway=True, note=print)


def setup(folder: RunFolder) -> Markdown:
    """Provenance of the run: configuration digest, commit, machine, versions."""
    about = folder.environment
    machine = about["machine"]
    memory = format_bytes(machine["memory_bytes"])
    values = {
        "run": str(folder.path),
        "profile": about["profile"],
        "evidence": about["evidence"],
        "configuration": about["config_digest"][:12],
        "commit": about["commit"][:12] + (" with changes" if about["dirty"] else ""),
        "machine": f"{machine['cpu']}, {machine['num_cores']} cores, {memory}, {machine['system']}",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
    }
    return _table([{"what": name, "value": value} for name, value in values.items()])


def table(folder: RunFolder, name: str) -> Markdown:
    """A table of the run."""
    result = folder.result
    return _table(result.tables[name] if result else [])


def figure(folder: RunFolder, *names: str) -> HTML:
    """Figures of the run, one below the other; the evidence of each stands in its corner."""
    # as HTML, because pages made from notebooks drop the alternative text of an image
    return HTML("<br>".join(_image(name, folder.artifacts / "figures" / f"{name}.png") for name in names))


def _image(name: str, path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="figure: {name}" width="720" src="data:image/png;base64,{content}">'


def criteria(folder: RunFolder) -> Markdown:
    """Every clause of the run's verdict, with its figures."""
    result = folder.result
    clauses = result.verdict.criteria if result and result.verdict else ()
    return _table([criterion_row(criterion) for criterion in clauses])


def verdict(folder: RunFolder) -> Markdown:
    """The run's verdict: outcome and codes, then conditions and the next command."""
    result = folder.result
    if result is None or result.verdict is None:
        return Markdown(f"No verdict in `{folder.path}`.")
    found = result.verdict
    lines = [f"## {found.outcome.value.upper()} ({', '.join(found.codes)})", "", found.summary, "", "Rests on:", ""]
    lines += [f"- {condition}" for condition in found.conditions]
    if found.enables:
        lines += ["", f"Enables: {', '.join(found.enables)}."]
    again = f"workbench gate {result.tags['gate']} --profile {result.profile} --again"
    lines += ["", f"Look closer: `workbench ui`; again: `{again}`."]
    return Markdown("\n".join(lines))


def gates(profile: str = "mini", runs: str = "") -> Markdown:
    """The gate table, as `workbench` alone prints it."""
    return _table(overview_rows(all_gates(), profile, results_root(runs)))


def latest_runs(count: int = 10, runs: str = "") -> Markdown:
    """The newest result folders."""
    newest = list(list_runs(results_root(runs)))[-count:][::-1]
    columns = ("kind", "run_id", "profile", "evidence")
    return _table([{name: run.environment[name] for name in columns} | {"status": run.status.value} for run in newest])


def geometries() -> Markdown:
    """Shapes and bytes of every profile."""
    shapes = {profile: profile_geometry(profile) for profile in PROFILES}
    return _table(
        [
            {
                "profile": profile,
                "layers": geometry.num_hidden_layers,
                "experts a layer": geometry.num_experts,
                "experts a token": geometry.num_experts_per_tok,
                "record, bytes": geometry.record_bytes,
                "all records, GB": geometry.num_expert_layers * geometry.num_experts * geometry.record_bytes / GB,
                "records a token": geometry.num_hidden_layers * geometry.num_experts_per_tok,
                "bytes a token": geometry.demand_bytes_per_token,
            }
            for profile, geometry in shapes.items()
        ]
    )


def bounds(misses_per_token: float | None = None, profile: str = "flash-next") -> Markdown:
    """Tokens/s that bytes alone allow at some disks' speeds, with nothing cached and at the misses that a cache leaves."""
    geometry = profile_geometry(profile)
    rows = []
    for gbps in _BANDWIDTHS_GBPS:
        row = {"disk, GB/s": gbps, "nothing cached, t/s": bandwidth_bound_tps(geometry.demand_bytes_per_token, gbps * GB)}
        if misses_per_token is not None:
            row["at these misses, t/s"] = bandwidth_bound_tps(misses_per_token * geometry.record_bytes, gbps * GB)
        rows.append(row)
    return _table(rows)


def _table(rows: Sequence[Mapping[str, Any]]) -> Markdown:
    return Markdown(markdown_table(rows))
