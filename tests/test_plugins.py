"""Classes from files: found, pinned by digest, and refused in one line."""

import pytest

from workbench.errors import BadInput
from workbench.plugins import is_plugin, load_class, pinned
from workbench.policies import Policy, make
from workbench.runtime.config import RuntimeConfig
from workbench.simulate.replay import miss_counts

LRU = """
from workbench.policies import Policy


class Mine(Policy):
    name = "mine"

    def __init__(self, capacity):
        super().__init__(capacity)
        self.keys = {}

    def start_event(self):
        pass

    def touch(self, keys):
        for key in keys:
            self.keys[key] = self.keys.pop(key)

    def admit(self, keys):
        self.keys.update(dict.fromkeys(keys))

    def evict(self, count, protected):
        victims = [key for key in self.keys if key not in protected][:count]
        for key in victims:
            del self.keys[key]
        return victims

    def forget(self, key):
        del self.keys[key]


class Stranger:
    pass
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LRU)
    return path


def test_a_policy_of_ones_own_misses_what_lru_misses(file):
    events = [[key % 7, (key * 3) % 11] for key in range(200)]
    assert make(f"{file}:Mine", capacity=4).name == "mine"
    assert miss_counts(events, 5, f"{file}:Mine").tolist() == miss_counts(events, 5, "lru").tolist()


def test_the_files_digest_is_part_of_the_configuration(file):
    config = RuntimeConfig(policy=f"{file}:Mine")
    assert config.policy.startswith(f"{file}:Mine@sha256:")
    assert RuntimeConfig.build({"policy": config.policy}) == config
    assert RuntimeConfig().policy == "lfru"
    file.write_text(LRU + "\n# changed\n")
    assert RuntimeConfig(policy=f"{file}:Mine").digest != config.digest
    with pytest.raises(BadInput, match=r"policy: .*mine\.py has changed since this configuration was written"):
        RuntimeConfig.build({"policy": config.policy})
    with pytest.raises(BadInput, match="has changed"):
        load_class(config.policy, Policy)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{folder}/none.py:Mine", "no such file: "),
        ("{folder}:Mine", None),
        ("{file}:Mien", "has no class Mien, did you mean Mine"),
        ("{file}:Stranger", "Stranger is no subclass of workbench.policies.base.Policy"),
        ("{file}:not a name", "names no class"),
    ],
)
def test_what_can_not_be_used_is_told_in_one_line(file, name, said):
    spec = name.format(folder=file.parent, file=file)
    if said is None:
        assert not is_plugin(spec)
        return
    with pytest.raises(BadInput) as caught:
        load_class(spec, Policy)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_fails_on_import_says_where_and_leaves_nothing(file):
    file.write_text("import math\nmath.nothing\n")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"mine.py, line 2: AttributeError"):
            load_class(f"{file}:Mine", Policy)
    file.write_text("def broken(:\n")
    with pytest.raises(BadInput, match="line 1: SyntaxError"):
        load_class(f"{file}:Mine", Policy)


def test_plain_names_are_left_alone():
    assert pinned("lfru") == "lfru"
