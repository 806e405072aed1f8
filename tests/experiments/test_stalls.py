import numpy as np

from workbench.experiments.simulation import LoadedRoutes
from workbench.experiments.stalls import StallConfig, stall_table
from workbench.simulate.events import route_frame
from workbench.simulate.planted import independent, repeated

SHAPE = {"num_requests": 3, "num_tokens": 12, "num_layers": 4, "num_experts": 32, "top_k": 4, "seed": 0}
CONFIG = StallConfig(requests=2, fractions=(0.25, 0.5), layer_ms=0.1)


def loaded(routes):
    return LoadedRoutes(frame=route_frame(routes, family="made"), num_layers=4, num_experts=32, profile="slice")


def test_every_disk_cache_and_wave_has_its_stall_per_byte():
    seen = []
    table = stall_table(loaded(independent(**SHAPE)), CONFIG, record_bytes=1_000_000, advance=seen.append)
    assert table.select("fraction", "wave").unique().height == 4
    assert table["envelope"].n_unique() == 4
    assert len(seen) == table.height == 16
    per_mb = table["stall_ms_per_token"] / table["read_mb_per_token"]
    assert np.allclose(per_mb, table["stall_ms_per_mb"])
    worst, best = (
        table.filter(fraction=0.25, wave="barrier", envelope=name)["stall_ms_per_mb"][0] for name in ("usb-10gbps", "m5-pro-2tb")
    )
    # 1.25 GB/s and the latency of each layer against 17 GB/s
    assert worst > 0.8 > 0.3 > best
    waves, barrier = (table.filter(wave=wave)["stall_ms_per_token"].sum() for wave in ("4", "barrier"))
    assert waves <= barrier


def test_without_reads_there_is_no_stall_per_byte():
    # the first token alone reads
    routes = repeated(**SHAPE | {"num_requests": 1})
    frame = route_frame(routes, family="made")
    prompt = (frame["position"] == 0).to_numpy()
    frame = frame.with_columns(phase=np.where(prompt, "prefill", "decode"))
    table = stall_table(LoadedRoutes(frame=frame, num_layers=4, num_experts=32, profile="slice"), CONFIG, record_bytes=1000)
    assert table["read_mb_per_token"].to_list() == [0.0] * 16
    assert table["stall_ms_per_mb"].null_count() == 16
