import pytest

from workbench.analysis.bootstrap import Resampler
from workbench.analysis.locality import locality_sums
from workbench.analysis.locality_tables import least_acceptance_needed


def test_the_best_block_is_chosen_anew_in_every_resample(repeated):
    sums = locality_sums(repeated)
    least = least_acceptance_needed(sums, repeated.top_k, Resampler(repeated.num_requests, num_resamples=50))
    assert float(least.high) == pytest.approx(0.2)
