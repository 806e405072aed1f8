import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cli.generation import _prompts
from workbench.errors import BadInput
from workbench.experiments.generate import GenerateConfig, run_generate
from workbench.experiments.text import TurnText, encode, load_tokenizer, stop_ids
from workbench.geometry import Geometry
from workbench.paths import bundled_model
from workbench.stores.pack import pack

TOKENIZER = load_tokenizer("mini")
GEOMETRY = Geometry.from_folder(bundled_model())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4095), max_size=24))
def test_shown_text_is_the_whole_text_to_the_last_byte(ids):
    shown = []
    text = TurnText(TOKENIZER, shown.append)
    for token_id in ids:
        text.add(token_id)
    whole = text.end()
    assert whole == TOKENIZER.decode(ids)
    assert "".join(shown) == whole


@pytest.mark.parametrize("text", ["naïve café 日本語 🚀", "🚀", "e\u0301\u0301", "def main():\n\tx = 1\r\n"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_character_that_does_not_end_is_shown_at_the_end(text, missing):
    ids = encode(TOKENIZER, text, 4096)
    ids = ids[: len(ids) - missing]
    shown = []
    turn = TurnText(TOKENIZER, shown.append)
    for token_id in ids:
        turn.add(token_id)
    assert turn.end() == "".join(shown) == TOKENIZER.decode(ids)


def with_added_token(folder, token_id):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append(
        {"id": token_id, "content": "<|tool|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
    )
    path.write_text(json.dumps(content))


@pytest.fixture
def checkpoint(tmp_path):
    """The bundled checkpoint in a folder whose small files can be edited."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in bundled_model().iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path)
        elif path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize("token_id", [4096, 5000, 20_000_000])
def test_a_token_that_the_model_lacks_is_refused_before_anything_is_written(token_id, checkpoint, tmp_path):
    # the tokenizer numbers an added token itself
    with_added_token(checkpoint, token_id)
    with pytest.raises(BadInput, match=r"tokenizer\.json gives '<\|tool\|>' the id \d+, the model has 4096 token ids"):
        pack(checkpoint, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_prompt_with_a_token_that_the_model_lacks_is_refused(packed, tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.mkdir()
    for path in packed.iterdir():
        (store / path.name).write_bytes(path.read_bytes())
    with_added_token(store, 4096)
    monkeypatch.setenv("WORKBENCH_STORE", str(store))
    tokenizer = load_tokenizer("flash-next")
    with pytest.raises(BadInput, match=r"gives '<\|tool\|>' the id 4096, the model has 4096"):
        encode(tokenizer, "a<|tool|>", GEOMETRY.vocab_size)
    assert max(encode(tokenizer, "a", GEOMETRY.vocab_size)) < 4096


@pytest.mark.parametrize(
    ("config", "generation", "found"),
    [
        ({}, None, {0}),
        ({"eos_token_id": [0, 7]}, None, {0, 7}),
        ({"eos_token_id": 3}, {"eos_token_id": [0, 9]}, {3, 0, 9}),
        ({}, {"eos_token_id": 5}, {0, 5}),
        ({}, {"eos_token_id": None}, {0}),
        ({"text_config": {"eos_token_id": [1, 2]}}, {}, {0, 1, 2}),
    ],
)
def test_every_end_of_text_id_stops(config, generation, found, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    eos = config.get("eos_token_id", 0)
    geometry = Geometry.from_config(json.loads((bundled_model() / "config.json").read_text()) | {"eos_token_id": eos})
    assert stop_ids("flash-next", geometry) == found


@pytest.mark.parametrize("eos", ["0", -1, 4096, 1.0, True, [0, None], {"a": 1}])
def test_an_odd_end_of_text_id_is_refused(eos, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(BadInput, match=r"generation_config\.json: eos_token_id must name ids of 0 to 4095"):
        stop_ids("flash-next", GEOMETRY)


def test_a_generation_configuration_is_packed_and_ends_a_turn_earlier(checkpoint, tmp_path, monkeypatch):
    (checkpoint / "generation_config.json").write_text('{"eos_token_id": 0}')
    values = {"profile": "flash-next", "turns": ["def main():"], "max_tokens": 6, "bandwidth_gbps": 1, "attribution_tokens": 0}
    config = GenerateConfig.build(values | {"runtime": {"cache_bytes": 8 << 20}})

    def tokens(name):
        pack(checkpoint, tmp_path / name)
        assert (tmp_path / name / "generation_config.json").exists()
        monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / name))
        return run_generate(config, root=tmp_path / "runs").texts[0]

    whole = tokens("one")
    ids = encode(TOKENIZER, whole, 4096)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids[2]]}))
    assert tokens("several") == TOKENIZER.decode(ids[: ids.index(ids[2]) + 1])


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ('print("a")\u2028print("b")\n', ['print("a")\u2028print("b")']),
        ("import os\n\x0cclass A:\n", ["import os", "\x0cclass A:"]),
        ("alpha\x85beta\x1c\u2029\n", ["alpha\x85beta\x1c\u2029"]),
        ("\ufeffdef main():\n", ["def main():"]),
        ("a\r\nb\r\n\r\nc", ["a", "b", "c"]),
        ("a\rb\n", ["a\rb"]),
    ],
)
def test_turns_end_at_newlines_alone_and_a_byte_order_mark_is_no_text(content, turns, tmp_path):
    path = tmp_path / "turns.txt"
    path.write_bytes(content.encode())
    assert _prompts(None, None, path) == turns


def test_text_is_utf_8_whatever_the_locale(packed, tmp_path):
    environment = os.environ | {"LC_ALL": "POSIX", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment |= {"WORKBENCH_RUNS": str(tmp_path / "runs"), "WORKBENCH_STORE": str(packed), "WORKBENCH_TRACKING": "off"}
    words = ["--max-tokens", "1", "--cache-bytes", "8MiB", "--bandwidth-gbps", "1", "--set", "attribution_tokens=0"]
    prompt = "naïve café 日本語 🚀"
    command = [sys.executable, "-m", "workbench.cli", "generate", "--prompt", prompt, *words]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    [config] = tmp_path.glob("runs/generate/*/config.toml")
    assert prompt in config.read_bytes().decode()
    ended.stdout.decode()
