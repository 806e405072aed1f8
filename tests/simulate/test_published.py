"""The external check: simulated misses beside published ones, with honest errors."""

import pytest

from workbench.simulate import published
from workbench.simulate.marginals import PUBLISHED, marginals_beside_published
from workbench.simulate.published import MISSES_PER_TOKEN, misses_beside_published
from workbench.simulate.synthetic import FLASH_NEXT_LIKE


def test_every_published_figure_has_its_row(monkeypatch):
    monkeypatch.setattr(published, "NUM_TOKENS", 4)
    rows = misses_beside_published(FLASH_NEXT_LIKE).to_dicts()
    assert len(rows) == sum(map(len, MISSES_PER_TOKEN.values())) == 30
    for row in rows:
        assert row["published"] == MISSES_PER_TOKEN[row["policy"]][row["num_slots"]]
        assert row["error_percent"] == pytest.approx(100 * (row["simulated"] - row["published"]) / row["published"])
        assert 0 <= row["simulated"] <= 480


def test_marginals_stand_beside_the_published_ones():
    rows = {row["marginal"]: row for row in marginals_beside_published(FLASH_NEXT_LIKE, num_tokens=24)}
    assert rows["union_b4"]["published"] == PUBLISHED.union_b4
    assert abs(rows["prev_token_overlap"]["error_percent"]) < 10


@pytest.mark.soak
def test_misses_are_near_the_published_ones_where_policies_are_the_same():
    rows = {
        (row["policy"], row["num_slots"]): row["error_percent"] for row in misses_beside_published(FLASH_NEXT_LIKE).to_dicts()
    }
    for policy in ("lru", "s3-fifo", "lfru", "belady"):
        for num_slots in (4008, 6347, 8000):
            assert abs(rows[policy, num_slots]) < 15, (policy, num_slots)
