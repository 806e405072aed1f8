"""Store folders that are not what their manifest says, through the real command line."""

import hashlib
import json
import os
import resource
import subprocess
import sys

import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.stores import open_store


@pytest.fixture
def edit(tiny_store):
    """Edits the manifest by a function of its JSON."""

    def apply(change):
        path = tiny_store / "manifest.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return apply


def renames(old, new):
    def change(manifest):
        manifest["files"][new] = manifest["files"].pop(old)

    return change


def sets(value, *keys):
    def change(manifest):
        for name in keys[:-1]:
            manifest = manifest[name]
        manifest[keys[-1]] = value

    return change


CASES = {
    "parent": (renames("tokenizer.json", "../tokenizer.json"), "leaves the folder"),
    "absolute": (renames("tokenizer.json", "/etc/passwd"), "leaves the folder"),
    "inner folder": (renames("tokenizer.json", "inner/tokenizer.json"), "leaves the folder"),
    "backslashes": (renames("tokenizer.json", "..\\tokenizer.json"), "leaves the folder"),
    "dot dot": (renames("tokenizer.json", ".."), "leaves the folder"),
    "empty name": (renames("tokenizer.json", ""), "leaves the folder"),
    "zero byte": (renames("tokenizer.json", "tokenizer\0json"), "leaves the folder"),
    "missing": (renames("tokenizer.json", "nothing.json"), "nothing.json is missing"),
    "unlisted": (lambda manifest: manifest["files"].pop("experts.crc"), "lacks experts.crc"),
    "version": (sets(2, "version"), "version"),
    "unknown key": (sets(1, "more"), "more"),
    "size": (sets(7, "files", "tokenizer.json", "num_bytes"), "its manifest says 7"),
    "huge size": (sets(2**63, "files", "experts.em2", "num_bytes"), f"its manifest says {2**63}"),
    "digest of a small file": (sets("00" * 32, "files", "config.json", "sha256"), "digest is not the manifest's"),
    "digest of the trunk": (sets("00" * 32, "files", "resident.safetensors", "sha256"), "digest is not the manifest's"),
    "digest of the experts": (sets("00" * 32, "files", "experts.em2", "sha256"), "digest is not the manifest's"),
    "digest of the rows": (sets("00" * 32, "files", "ngrams.1.ple", "sha256"), "digest is not the manifest's"),
    "payload": (sets("00" * 32, "experts", "payload_sha256"), "not the store its manifest describes"),
    "codec": (sets(8, "experts", "bits"), "not the store its manifest describes"),
    "layers": (sets([0, 1], "experts", "layers"), "not the store its manifest describes"),
    "source": (sets("00" * 32, "source", "sha256"), "not the store its manifest describes"),
    "source size": (sets(9, "source", "num_bytes"), "not the store its manifest describes"),
    "row codec": (sets("bf16", "ngrams", 0, "codec"), "not the store its manifest describes"),
    "row layer": (sets(2, "ngrams", 0, "layer"), "lacks ngrams.2.ple"),
    "no rows": (sets([], "ngrams"), "n-gram tables of layers []"),
    "geometry": (sets(7, "geometry", "num_experts"), "disagree on the geometry"),
    "no geometry": (sets({}, "geometry"), "disagree on the geometry"),
}


@pytest.mark.parametrize("name", CASES)
def test_manifests_that_lie(refused, edit, tiny_store, name):
    change, says = CASES[name]
    edit(change)
    refused(tiny_store, says)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"version": 1}', b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"]
)
def test_manifests_that_are_none(refused, tiny_store, content):
    (tiny_store / "manifest.json").write_bytes(content)
    refused(tiny_store, "manifest.json")


def test_a_manifest_of_any_size(refused, tiny_store):
    os.truncate(tiny_store / "manifest.json", 2**40)
    refused(tiny_store, "must be at most")


@pytest.mark.parametrize("name", ["tokenizer.json", "experts.em2", "manifest.json"])
def test_a_link_out_of_the_folder(refused, tiny_store, tmp_path, name):
    (tiny_store / name).rename(tmp_path / "outside")
    (tiny_store / name).symlink_to(tmp_path / "outside")
    refused(tiny_store, "a link or no regular file")


def test_a_pipe_instead_of_a_file(refused, tiny_store):
    (tiny_store / "tokenizer.json").unlink()
    os.mkfifo(tiny_store / "tokenizer.json")
    refused(tiny_store, "a link or no regular file")


def test_a_config_of_another_geometry(refused, edit, tiny_store):
    """Manifest and config agree with each other, and the expert store with neither."""
    path = tiny_store / "config.json"
    config = json.loads(path.read_text()) | {"num_experts_per_tok": 3}
    path.write_text(json.dumps(config))
    content = path.read_bytes()

    def change(manifest):
        manifest["geometry"]["num_experts_per_tok"] = 3
        manifest["files"]["config.json"] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    edit(change)
    refused(tiny_store, "geometry disagrees with the model's: experts per token 2, the model has 3")


def test_rows_of_another_geometry(edit, tiny_store):
    path = tiny_store / "config.json"
    config = json.loads(path.read_text()) | {"ngram_vocab_size_base": 300}
    path.write_text(json.dumps(config))
    content = path.read_bytes()

    def change(manifest):
        manifest["geometry"]["ngram_vocab_size_base"] = 300
        manifest["files"]["config.json"] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    edit(change)
    with pytest.raises(BadInput, match=r"ngrams\.1\.ple has rows"):
        open_store(tiny_store)


def test_a_damaged_trunk(refused, patch, tiny_store):
    patch(tiny_store / "resident.safetensors", 20_000, b"\xff\xff\xff")
    refused(tiny_store, "resident.safetensors: its digest is not the manifest's")


@pytest.mark.parametrize("leftover", [True, False])
def test_a_folder_without_a_manifest_is_no_store(tiny_store, leftover):
    (tiny_store / "manifest.json").rename(tiny_store / "manifest.json.part")
    if not leftover:
        (tiny_store / "manifest.json.part").unlink()
    with pytest.raises(UnmetPrerequisite, match="no store in"):
        open_store(tiny_store)


def test_a_hostile_store_in_a_process_of_little_memory(patch, tiny_store):
    """A header of sizes near 2^63 and a sparse file of 2^40 bytes, with an address space that holds the program alone."""
    path = tiny_store / "ngrams.1.ple"
    patch(path, 40, (2**63 - 1).to_bytes(8, "little"))
    os.truncate(path, 2**40)
    small = (
        "import resource, sys; from workbench.cli import app, commands, run; import workbench.stores.verify, mlx.core; "
        "commands.register(app);"
    )
    limit = "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
    limit += "resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20,) * 2); sys.exit(run(sys.argv[1:]))"
    for target in (path, tiny_store):
        done = subprocess.run([sys.executable, "-c", small + limit, "verify", str(target)], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "Traceback" not in done.stderr
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b"[" * 100_000, b'{"hidden_size": ' + b"9" * 5000 + b"}", b"{}", b'{"text_config": [1]}'],
)
def test_configs_that_are_none(command, make_checkpoint, tmp_path, content):
    folder = make_checkpoint("source")
    (folder / "config.json").write_bytes(content)
    done = command("pack", folder, "--out", tmp_path / "out")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.peak_bytes < 8 * 2**20


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "a"),
        ("hidden_size", -1),
        ("hidden_size", 2**63 - 1),
        ("hidden_size", 1.5),
        ("hidden_size", None),
        ("num_experts", [1]),
        ("num_hidden_layers", "8"),
        ("num_hidden_layers", 10**9),
        ("layer_types", [1, 2, 3]),
        ("ple_layer_ids", 5),
        ("ple_layer_ids", ["a"]),
        ("heads_per_ngram", 3),
        ("ngram_size", 1),
        ("ngram_vocab_size_base", 10**15),
        ("make_ngram_vocab_size_divisible_by", 0),
        ("rope_parameters", [1]),
        ("quantization", [1]),
        ("quantization", {"bits": "x"}),
        ("eos_token_id", []),
        ("indexer_compress_ratio", 0),
    ],
)
def test_configs_of_impossible_numbers(command, make_checkpoint, tmp_path, field, value):
    folder = make_checkpoint("source")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    done = command("pack", folder, "--out", tmp_path / "out")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.peak_bytes < 8 * 2**20
