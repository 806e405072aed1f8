import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from workbench.config import Config, ConfigError, overlay, read_toml, with_settings


class Cache(Config):
    """Of the example."""

    cache_bytes: int = Field(4096, gt=0)
    """Bytes."""
    policy: str = "lfru"
    """Name."""


class Example(Config):
    """A configuration with a table."""

    cache: Cache = Cache(cache_bytes=100)
    """The cache."""
    seed: int | None = None
    """Of the random choice."""
    names: tuple[str, ...] = ()
    """Some words."""


def test_settings_lie_over_values_and_values_over_defaults():
    made = Example.build({"cache": {"policy": "lru"}, "seed": 3}, ["seed=4", "names=['a', 'b']"])
    assert made == Example(cache=Cache(cache_bytes=100, policy="lru"), seed=4, names=("a", "b"))


def test_a_word_needs_no_quotes():
    assert Example.build(settings=["cache.policy = arc"]).cache.policy == "arc"


def test_toml_round_trip_keeps_the_digest(tmp_path):
    made = Example.build(settings=["seed=1", "cache.cache_bytes=7"])
    (tmp_path / "config.toml").write_text(made.to_toml())
    read = Example.from_toml(tmp_path / "config.toml")
    assert read == made
    assert read.digest == made.digest


def test_the_digest_is_of_the_settings_alone():
    assert Example.build({"seed": 1, "names": ["x"]}).digest == Example.build({"names": ["x"], "seed": 1}).digest
    assert Example().digest != Example(seed=0).digest
    # pinned: a result of another day must still find its configuration
    assert Example().digest == "f1f730e5884e5c4208651301f8061f9e8c00fa021797484342bd2f3b132f5f34"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sede=1"], "sede: no such setting; did you mean seed?"),
        (["cache.polcy=lru"], "cache.polcy: no such setting; did you mean policy?"),
        (["zzz=1"], "zzz: no such setting"),
        (["seed"], "not a setting: 'seed'"),
        (["=1"], "not a setting"),
        (["seed.x=1"], "seed: "),
        (["names=['a']", "names.b=1"], "names is not a table"),
        (["cache.cache_bytes=0"], r"cache.cache_bytes: Input should be greater than 0 \(got 0\)"),
        (["seed=abc", "cache.cache_bytes=-1"], "cache.cache_bytes: .*; seed: "),
    ],
)
def test_mistakes_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        Example.build(settings=settings)


def test_a_built_configuration_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        Example().seed = 1


@pytest.mark.parametrize(("content", "message"), [(b"a = ", "is not TOML"), (b"\xff", "is not UTF-8 text")])
def test_files_that_are_no_toml(tmp_path, content, message):
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_toml(path)
    with pytest.raises(ConfigError, match="no such file"):
        read_toml(tmp_path / "missing.toml")


def test_overlay_says_nothing_by_none_and_leaves_its_arguments_alone():
    values, over = {"a": 1, "t": {"x": 1, "y": 2}}, {"a": None, "t": {"y": 3}, "u": {"z": None}}
    assert overlay(values, over) == {"a": 1, "t": {"x": 1, "y": 3}, "u": {}}
    assert values == {"a": 1, "t": {"x": 1, "y": 2}}


scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("ab=.", max_size=8)


@given(st.dictionaries(st.sampled_from("abcd"), scalars), st.sampled_from("abcd"), st.integers(-(2**60), 2**60))
def test_a_setting_changes_its_key_alone(values, key, value):
    assert with_settings(values, [f"{key}={value}"]) == {**values, key: value}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1\nother = 2", "1\nother = 2"), ("1 # one", "1 # one"), ("1]\nx = [2", "1]\nx = [2"), ("", ""), ("1,", "1,"),
     ("[1,\n2]", [1, 2]), ("'a # b'", "a # b"), ("a, b", "a, b"), (5000 * "9", 5000 * "9"), (10_000 * "[", 10_000 * "[")],
)  # fmt: skip
def test_a_setting_is_one_value_or_its_whole_text(text, value):
    assert with_settings({}, [f"key={text}"]) == {"key": value}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": True}, r"seed: Input should be a valid integer \(got True\)"),
        ({"seed": 1.0}, "seed: Input should be a valid integer"),
        ({"seed": "1"}, "seed: Input should be a valid integer"),
        ({"seed": 2**63}, "seed: an integer has at most 64 bits"),
        ({"seed": 10**4999}, "seed: an integer has at most 64 bits"),
        ({"names": [datetime.date(2026, 1, 1)]}, "names: no setting is a date or a time"),
        ({"cache": {"policy": datetime.time(1)}}, r"cache.policy: no setting is a date or a time; .* \(got 01:00:00\)"),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "; and 1 more"),
    ],
)
def test_no_value_changes_its_type(values, message):
    with pytest.raises(ConfigError, match=message):
        Example.build(values)


@pytest.mark.parametrize("value", [0, 5, "ab", [1], [["a", 1]], False])
def test_what_is_no_table_stays_none(value):
    with pytest.raises(ConfigError, match="t: a table is expected"):
        overlay({"t": value}, {"t": {"x": None}})
