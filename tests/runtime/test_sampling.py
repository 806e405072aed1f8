import numpy as np
import pytest

from workbench.config import ConfigError
from workbench.runtime.sampling import Sampler, SamplingConfig

LOGITS = np.log(np.array([0.1, 0.6, 0.3]))


def draws(config: SamplingConfig, n: int = 4000) -> np.ndarray:
    sampler = Sampler(config)
    return np.bincount([sampler.choose(LOGITS) for _ in range(n)], minlength=3) / n


def test_greedy_takes_the_highest_and_ties_go_to_the_lowest_id() -> None:
    assert Sampler(SamplingConfig()).choose(LOGITS) == 1
    assert Sampler(SamplingConfig()).choose(np.array([2.0, 5.0, 5.0])) == 1


def test_temperature_one_draws_the_softmax() -> None:
    assert draws(SamplingConfig(temperature=1.0)) == pytest.approx([0.1, 0.6, 0.3], abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert draws(SamplingConfig(temperature=1.0, top_p=0.7)) == pytest.approx([0.0, 2 / 3, 1 / 3], abs=0.03)
    assert draws(SamplingConfig(temperature=1.0, top_p=0.5)) == pytest.approx([0.0, 1.0, 0.0])


def test_a_seed_repeats_its_draws() -> None:
    first, second = (Sampler(SamplingConfig(temperature=1.0, seed=7)) for _ in range(2))
    assert [first.choose(LOGITS) for _ in range(50)] == [second.choose(LOGITS) for _ in range(50)]


@pytest.mark.parametrize("setting", ["temperature=-1", "top_p=0", "top_p=1.5"])
def test_settings_without_a_meaning_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.split("=")[0]):
        SamplingConfig.build(settings=[setting])
