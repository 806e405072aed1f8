"""The bundled prompts are what their README says, and a folder that is not is refused."""

import hashlib
import json
import re
import shutil
from collections import Counter

import pytest
from tokenizers import Tokenizer

from workbench.errors import BadInput
from workbench.paths import bundled_model, data_folder
from workbench.prompts import load_prompts

FOLDER = data_folder() / "prompts"
HELD_OUT_WHOLE = {"rust", "question_answer"}


@pytest.fixture(scope="module")
def prompts():
    return load_prompts(FOLDER)


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(FOLDER, tmp_path / "prompts")


def test_six_families_of_twenty(prompts):
    assert Counter(prompt.family for prompt in prompts) == dict.fromkeys(
        ["python", "rust", "documentation", "prose", "lists_tables", "question_answer"], 20
    )


def test_four_families_are_halved_and_two_held_out_whole(prompts):
    halves = Counter((prompt.family, prompt.split) for prompt in prompts)
    for family in {prompt.family for prompt in prompts}:
        expected = (0, 20) if family in HELD_OUT_WHOLE else (10, 10)
        assert (halves[family, "train"], halves[family, "held_out"]) == expected


def test_no_source_is_on_both_sides_of_the_split(prompts):
    sides = {split: {prompt.source for prompt in prompts if prompt.split == split} for split in ("train", "held_out")}
    assert not sides["train"] & sides["held_out"]


def test_lengths_are_those_of_the_bundled_tokenizer(prompts):
    tokenizer = Tokenizer.from_file(str(bundled_model() / "tokenizer.json"))
    lengths = [len(tokenizer.encode(prompt.text, add_special_tokens=False).ids) for prompt in prompts]
    assert lengths == [prompt.num_tokens for prompt in prompts]
    assert all(32 <= length <= 256 for length in lengths)


def test_prompts_are_distinct_and_clean(prompts):
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
    starts = [re.sub(r"\s+", " ", prompt.text)[:80] for prompt in prompts]
    assert len(set(starts)) == len(starts)
    for prompt in prompts:
        assert prompt.text == prompt.text.rstrip()
        assert all(character == "\n" or character.isprintable() for character in prompt.text), prompt.id


def test_no_prompt_is_text_that_the_model_is_evaluated_or_trained_on(prompts):
    evaluated = re.sub(r"\s+", " ", (bundled_model() / "eval.txt").read_text())
    assert all(re.sub(r"\s+", " ", prompt.text) not in evaluated for prompt in prompts if prompt.trained_on is False)
    corpus = (bundled_model() / "README.md").read_text()
    sources = {re.split(r"[ ,(]", prompt.source)[0].lower() for prompt in prompts}
    trained = {row.split("|")[1].strip().lower() for row in corpus.splitlines() if row.startswith("| ")}
    assert not sources & trained


def test_readme_lists_every_source_with_its_numbers(prompts):
    groups = {}
    for prompt in prompts:
        key = (prompt.family, prompt.split, prompt.source, prompt.version, prompt.licence)
        groups.setdefault(key, []).append(prompt.num_tokens)
    rows = [f"| {' | '.join(key)} | {len(n)} | {min(n)} to {max(n)} |" for key, n in groups.items()]
    text = (FOLDER / "README.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| ")][2:] == rows


def test_family_and_split_select(prompts):
    chosen = load_prompts(FOLDER, family="python", split="held_out")
    assert chosen == tuple(p for p in prompts if p.family == "python" and p.split == "held_out")


@pytest.mark.parametrize(
    ("family", "split", "message"),
    [("pyhton", None, "did you mean python"), (None, "heldout", "did you mean held_out"), ("rust", "train", "no split 'train'")],
)
def test_unknown_names_are_refused_with_the_nearest(family, split, message):
    with pytest.raises(BadInput, match=message):
        load_prompts(FOLDER, family=family, split=split)


def test_a_changed_file_is_refused(copy):
    path = copy / "rust.jsonl"
    path.write_bytes(path.read_bytes().replace(b"fn ", b"fm ", 1))
    with pytest.raises(BadInput, match=r"rust\.jsonl: its SHA-256 is not the manifest's"):
        load_prompts(copy)


def test_a_missing_file_and_a_missing_manifest_are_refused(copy):
    (copy / "prose.jsonl").unlink()
    with pytest.raises(BadInput, match=r"prose\.jsonl: not readable"):
        load_prompts(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(BadInput, match="no readable manifest"):
        load_prompts(copy)


def test_another_version_and_a_line_that_is_no_prompt_are_refused(tmp_path):
    line = b'{"id": "x"}\n'
    (tmp_path / "x.jsonl").write_bytes(line)
    manifest = {"version": 2, "files": {"x.jsonl": hashlib.sha256(line).hexdigest()}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="version 2, this workbench reads 1"):
        load_prompts(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"version": 1}))
    with pytest.raises(BadInput, match=r"x\.jsonl, line 1: not a prompt"):
        load_prompts(tmp_path)
