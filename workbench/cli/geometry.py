"""`workbench geometry`: bytes by owner and per token, and the tokens/s that a bandwidth allows. Arithmetic; reads no weights."""

from pathlib import Path
from typing import Any

from cyclopts import App

from workbench.bounds import bandwidth_bound_tps, ideal_routed_bytes_per_token
from workbench.cli.output import print_json, print_table
from workbench.errors import BadInput, did_you_mean
from workbench.geometry import COMPONENTS, FLASH_NEXT, Geometry, slice_config
from workbench.paths import PROFILES, bundled_model
from workbench.stores.build import BuildSettings
from workbench.units import GB, format_bytes

_BF16_BYTES = 2
_MOST_GBPS = 1_000_000
_NO_BANDWIDTH = (
    "No bound without a bandwidth: give --bandwidth-gbps, the GB/s of the disk at this record size. "
    "`workbench gate A` measures it, `workbench bench io` does so in half a minute."
)


def register(app: App) -> None:
    """Adds the command."""
    app.command(geometry)


def geometry(what: str, *, bandwidth_gbps: float | None = None, json: bool = False) -> None:
    """Shows the bytes of a model by owner and per token, and the bound that a bandwidth sets.

    Example: workbench geometry flash-next --bandwidth-gbps 6.5

    Parameters
    ----------
    what
        flash-next, slice, mini, or a checkpoint or store folder.
    bandwidth_gbps
        Bandwidth of the disk in decimal GB/s.
    json
        One JSON document instead of tables.
    """
    shapes = find_geometry(what)
    owners, figures = owner_rows(shapes), token_figures(shapes, bandwidth_gbps)
    if json:
        print_json("geometry", {"what": what, "owners": owners, **figures})
        return
    print_table(owners, f"{what}: bytes by owner")
    print_table([{"quantity": name, "value": value, "": _readable(name, value)} for name, value in figures.items()], "Per token")
    if bandwidth_gbps is None:
        print(f"\n{_NO_BANDWIDTH}")


def find_geometry(what: str) -> Geometry:
    """Geometry of a profile or a folder. Raises BadInput with the nearest profile's name."""
    if what == "flash-next":
        return FLASH_NEXT
    if what == "slice":
        return Geometry.from_config(slice_config())
    if what == "mini":
        return Geometry.from_folder(bundled_model())
    if Path(what).is_dir():
        return Geometry.from_folder(Path(what))
    hint = did_you_mean(what, PROFILES, otherwise=f"write {', '.join(PROFILES)} or a folder with a config.json")
    raise BadInput(f"no such profile or folder: {what!r}; {hint}")


def owner_rows(shapes: Geometry) -> list[dict[str, Any]]:
    """Parameters and bytes of each owner: routed experts as records, n-gram rows as packed, the rest in bf16."""
    bytes_of = {
        "routed_experts": shapes.num_expert_layers * shapes.num_experts * shapes.record_bytes,
        "ple_tables": sum(shapes.ple_num_rows(i) for i in range(len(shapes.ple_layer_ids))) * _row_bytes(shapes),
    }
    lives = {"routed_experts": "disk, streamed", "ple_tables": "disk, streamed"}
    rows: list[dict[str, Any]] = [
        {
            "owner": owner,
            "parameters": parameters,
            "bytes": bytes_of.get(owner, _BF16_BYTES * parameters),
            "lives": lives.get(owner, "memory"),
        }
        for owner, parameters in shapes.parameters_by_owner().items()
    ]
    totals = {key: sum(row[key] for row in rows) for key in ("parameters", "bytes")}
    return [*rows, {"owner": "total", **totals, "lives": ""}]


def token_figures(shapes: Geometry, bandwidth_gbps: float | None) -> dict[str, int | float]:
    """Records, rows and bytes that one decoded token needs or adds; with a bandwidth, the bound when nothing is cached."""
    pages = shapes.ple_heads * len(shapes.ple_layer_ids)
    page_bytes = pages * BuildSettings().page_bytes
    figures: dict[str, int | float] = {
        "record_bytes": shapes.record_bytes,
        **{f"{component}_bytes": shapes.component_bytes(component) for component in COMPONENTS},
        "records_per_token": shapes.num_hidden_layers * shapes.num_experts_per_tok,
        "routed_parameter_uses_per_token": shapes.routed_parameter_uses_per_token,
        "routed_bytes_per_token": shapes.demand_bytes_per_token,
        "routed_bytes_per_token_at_ideal_4_bits": ideal_routed_bytes_per_token(shapes, 4),
        "routed_bytes_per_token_at_ideal_2_bits": ideal_routed_bytes_per_token(shapes, 2),
        "ple_rows_per_token": pages,
        "ple_row_bytes_per_token": pages * _row_bytes(shapes),
        "ple_page_bytes_per_token": page_bytes,
        "gdn_state_bytes_per_sequence": shapes.gdn_state_bytes,
        "kv_bytes_per_token": shapes.kv_bytes_per_token(),
    }
    if bandwidth_gbps is not None:
        if not 0 < bandwidth_gbps <= _MOST_GBPS:
            raise BadInput(f"--bandwidth-gbps must be above 0 and at most {_MOST_GBPS:,}, got {bandwidth_gbps:g}")
        demand = shapes.demand_bytes_per_token + page_bytes
        figures["bandwidth_gbps"] = float(bandwidth_gbps)
        figures["bound_tps_nothing_cached"] = bandwidth_bound_tps(demand, bandwidth_gbps * GB)
    return figures


def _row_bytes(shapes: Geometry) -> int:
    return BuildSettings().codec_of_rows(shapes.ple_row_width).row_bytes if shapes.ple_layer_ids else 0


def _readable(name: str, value: float) -> str:
    return format_bytes(value) if "bytes" in name else ""
