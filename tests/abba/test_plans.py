import pytest

from workbench.abba.plans import better_way, compare_generate
from workbench.errors import BadInput
from workbench.schema import Evidence

BASE = {"turns": ["def"], "max_tokens": 2, "bandwidth_gbps": 1.0}
SLOWED = {**BASE, "runtime": {"envelope": "usb-10gbps", "uncached": False}}


@pytest.mark.parametrize(("base", "evidence"), [(BASE, Evidence.PHYSICAL), (SLOWED, Evidence.EMULATED)])
def test_a_comparison_is_as_physical_as_its_arms(mini_store, base, evidence):
    config = compare_generate(base, ["runtime.wave=4"], {})
    assert config.evidence is evidence
    assert {path.rsplit(".", 1)[1] for path in config.cache_files} == {"em2", "ple"}


@pytest.mark.parametrize(
    ("base", "change", "wrong"),
    [
        (BASE, "runtime.envelope=usb-10gbps", "physical reads with emulated ones"),
        (SLOWED, "runtime.envelope=", "emulated reads with physical ones"),
        (BASE, "max_tokens=2", "changes nothing"),
    ],
)
def test_what_cannot_be_compared_is_refused(mini_store, base, change, wrong):
    with pytest.raises(BadInput, match=wrong):
        compare_generate(base, [change], {})


def test_the_unit_says_which_way_a_metric_improves():
    assert (better_way("e2e/decode_tps"), better_way("overlap/exposed_wait_ms")) == ("higher", "lower")
    with pytest.raises(BadInput, match="no such metric"):
        better_way("e2e/luck")
    with pytest.raises(BadInput, match="say which way"):
        better_way("routing/decode_hit_rate")
