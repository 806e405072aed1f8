"""Classes from files: pinned by digest, changed in place, broken, interrupted, named in several ways, in another process."""

import hashlib
import multiprocessing
import os
import sys

import pytest

from workbench.config import Config, ConfigError
from workbench.errors import BadInput
from workbench.plugins import Plugin, is_plugin, load_class, pinned, short_name
from workbench.policies import Lru, Policy
from workbench.runtime.config import RuntimeConfig
from workbench.simulate.replay import miss_counts
from workbench.simulate.twin import TwinConfig

OWN_LRU = '''"""Least recently used, with a dict."""

from workbench.policies import Policy


class Mine(Policy):
    """Evicts the key that was used longest ago."""

    name = "mine"

    def __init__(self, capacity):
        super().__init__(capacity)
        self.order = {}

    def start_event(self):
        pass

    def touch(self, keys):
        self.order = {key: None for key in self.order if key not in keys} | dict.fromkeys(keys)

    admit = touch

    def evict(self, count, protected):
        victims = [key for key in self.order if key not in protected][:count]
        for key in victims:
            self.forget(key)
        return victims

    def forget(self, key):
        del self.order[key]
'''
EVENTS = [[i * 7 % 11, i * 5 % 13 + 11] for i in range(300)]


class Settings(Config):
    policy: Plugin = "lru"
    """Whom to evict."""
    others: tuple[Plugin, ...] = ()
    """Further ones."""


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN_LRU)
    return file


def refusal(call, *arguments):
    """The one line of a refusal."""
    with pytest.raises(BadInput) as refused:
        call(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def plugin_modules():
    return {name for name in sys.modules if name.startswith("workbench_plugin_")}


def test_which_names_are_files():
    assert is_plugin("mine.py:Mine")
    assert is_plugin("/a/mine.py:Mine@sha256:00")
    # no class is named: the refusal says how to
    assert is_plugin("mine.py")
    assert not is_plugin("lru")
    assert [short_name(name) for name in ("lru", "/a/mine.py:Mine@sha256:00", "mine.py:Mine")] == ["lru", *["mine.py:Mine"] * 2]


def test_a_worker_process_loads_it_by_its_name(mine):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(miss_counts, (EVENTS, 8, pinned(f"{mine}:Mine")))
    assert found.tolist() == miss_counts(EVENTS, 8, Lru).tolist()


def test_a_file_is_executed_once_per_content(mine, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    first = load_class(f"{mine}:Mine", Policy)
    assert load_class(pinned(f"{mine}:Mine"), Policy) is first
    # same length and same time: bytecode cached by them would be that of the old content
    stat = mine.stat()
    mine.write_text(OWN_LRU.replace('"mine"', '"your"'))
    os.utime(mine, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert load_class(f"{mine}:Mine", Policy).name == "your"
    assert not list(mine.parent.glob("__pycache__"))


def test_what_is_no_file_or_names_no_class(mine, tmp_path):
    assert refusal(load_class, f"{tmp_path}/none.py:Mine", Policy) == f"no such file: {tmp_path}/none.py"
    (tmp_path / "folder.py").mkdir()
    assert refusal(load_class, f"{tmp_path}/folder.py:Mine", Policy) == f"{tmp_path}/folder.py is no regular file"
    assert refusal(load_class, f"{mine}", Policy) == f"'{mine}' names no class: write path/to/file.py:Class"
    assert "names no class" in refusal(load_class, f"{mine}:not a name", Policy)
    assert refusal(load_class, f"{mine}:Mien", Policy) == f"{mine} has no class Mien, did you mean Mine?"


def test_what_is_no_subclass_is_refused(mine):
    assert refusal(load_class, f"{mine}:Mine", Config) == f"{mine}: Mine is no subclass of workbench.config.Config"
    mine.write_text("Mine = 3")
    assert "Mine is no subclass of workbench.policies.base.Policy" in refusal(load_class, f"{mine}:Mine", Policy)


def test_a_class_that_lacks_verbs_is_refused(mine):
    mine.write_text(OWN_LRU.replace("def evict", "def expel").replace("self.forget", "").replace("def forget", "def lose"))
    assert refusal(load_class, f"{mine}:Mine", Policy) == f"{mine}: Mine does not define evict, forget"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1\n\ndef f():\n    return y\n\nf()\n", "line 4: NameError: name 'y' is not defined"),
        ("x = 1\ndef f(:\n", "line 2: SyntaxError: invalid syntax"),
        ("import no_such_thing\n", "line 1: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit('a\\nb')\n", "line 1: SystemExit: a b"),
    ],
)
def test_a_file_that_fails_on_import_leaves_nothing(source, told, mine):
    before = plugin_modules()
    mine.write_text(source)
    assert refusal(load_class, f"{mine}:Mine", Policy).startswith(f"{mine}, {told}")
    assert plugin_modules() == before


def test_an_interrupted_import_leaves_nothing_and_stays_an_interruption(mine):
    before = plugin_modules()
    mine.write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_class(f"{mine}:Mine", Policy)
    assert plugin_modules() == before


def test_a_configuration_names_the_content_of_the_file(mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    digest = hashlib.sha256(OWN_LRU.encode()).hexdigest()
    config = Settings(policy="mine.py:Mine", others=("lfru", "./mine.py:Mine"))
    assert config.policy == f"{mine}:Mine@sha256:{digest}"
    assert config.others == ("lfru", config.policy)
    # written down and read again it is the same configuration
    assert Settings.model_validate(config.model_dump()) == config
    assert Settings.build(settings=[f"policy={mine}:Mine"]).digest == Settings(policy="mine.py:Mine").digest


def test_a_configuration_of_an_earlier_content_is_refused(mine):
    config = Settings(policy=f"{mine}:Mine")
    mine.write_text(OWN_LRU + "\n# changed\n")
    assert Settings(policy=f"{mine}:Mine").digest != config.digest
    with pytest.raises(ConfigError, match=r"policy: .*mine\.py has changed since this configuration was written"):
        Settings.build(config.model_dump())
    assert "has changed" in refusal(load_class, config.policy, Policy)


@pytest.mark.parametrize("kind", [RuntimeConfig, TwinConfig])
def test_settings_of_runs_take_files(mine, kind):
    config = kind.build(settings=[f"policy={mine}:Mine", *(["num_slots=8"] if kind is TwinConfig else [])])
    assert config.policy == pinned(f"{mine}:Mine")
    assert pinned("lfru") == "lfru"


def test_a_missing_file_is_refused_in_one_line_when_the_configuration_is_made(tmp_path):
    with pytest.raises(ConfigError, match=r"^policy: .*no such file: .*none\.py") as refused:
        TwinConfig.build(settings=["num_slots=8", f"policy={tmp_path}/none.py:Mine"])
    assert "\n" not in str(refused.value)
