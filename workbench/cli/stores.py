"""`workbench pack`, `slice` and `verify`: make and check stores."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from workbench.cli.output import OutputFolder, print_json, print_table
from workbench.cli.values import Seed
from workbench.geometry import Codec
from workbench.paths import store_folder
from workbench.stores.build import BuildSettings
from workbench.stores.manifest import StoreManifest
from workbench.units import PAGE_BYTES

_HOW_TO_RESUME = "the same command resumes"


def register(app: App) -> None:
    """Adds the commands."""
    app.command(pack)
    app.command(make_slice, name="slice")
    app.command(verify)


def pack(
    checkpoint: Path,
    *,
    out: OutputFolder,
    storage_format: Annotated[int, Parameter(name="--format")] = 2,
    bits: int | None = None,
    group_size: int | None = None,
    row_codec: str | None = None,
    page_bytes: int = PAGE_BYTES,
    json: bool = False,
) -> None:
    """Packs a checkpoint into a store folder; after an interruption, the same command resumes.

    Example: workbench pack data/qwen4exp-mini-4bit --out data/stores/mini

    Parameters
    ----------
    checkpoint
        Folder with config.json and safetensors files: MLX affine 4-bit, or bf16 that is quantised here.
    out
        The store folder: new, empty, or an interrupted pack of the same checkpoint.
    storage_format
        ExpertMajor storage format: 2 (planar) or 1 (interleaved).
    bits
        Bits per weight, for bf16 experts; default 4.
    group_size
        Weights that share a scale, for bf16 experts; default 64.
    row_codec
        Codec of n-gram rows, bf16 or affine4; default affine4 if their width allows it.
    page_bytes
        Size of an n-gram page: 4096 or 16384.
    json
        One JSON document instead of a table.
    """
    from workbench.stores.pack import pack as pack_checkpoint

    settings = BuildSettings(storage_format=storage_format, row_codec=row_codec, page_bytes=page_bytes)
    codec = (
        None
        if bits is None and group_size is None
        else Codec(bits=4 if bits is None else bits, group_size=64 if group_size is None else group_size)
    )
    try:
        manifest = pack_checkpoint(checkpoint, out, settings=settings, codec=codec)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_HOW_TO_RESUME) from None
    _print_store(out, manifest, json)


def make_slice(*, layers: int = 4, seed: Seed = 0, out: OutputFolder | None = None, json: bool = False) -> None:
    """Makes the store of profile slice: true Flash-Next records drawn from a seed, no checkpoint needed.

    Example: workbench slice --layers 4 --out data/stores/slice

    Parameters
    ----------
    layers
        Layers of the model; each has 1.42 GB of experts.
    seed
        Seed of the weights.
    out
        The store folder; default: where the profile looks for it.
    json
        One JSON document instead of a table.
    """
    from workbench.stores.slicing import make_slice as make

    folder = out or store_folder("slice")
    try:
        manifest = make(folder, num_layers=layers, seed=seed)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_HOW_TO_RESUME) from None
    _print_store(folder, manifest, json)


def verify(path: Path, *, json: bool = False) -> None:
    """Reads a store folder, or a single store file, and checks every digest, checksum, padding byte and shape.

    Example: workbench verify data/stores/mini

    Parameters
    ----------
    path
        A store folder, an .em2 or .ple file, or a GGUF file that embeds an expert store.
    json
        One JSON document instead of a table.
    """
    from workbench.stores.verify import verify as verify_store

    rows = [asdict(checked) for checked in verify_store(path)]
    if json:
        print_json("verify", {"path": str(path), "files": rows})
        return
    print_table([{"file": r["file"], "bytes": r["num_bytes"], "holds": r["holds"], "digest": r["digest"][:12]} for r in rows])
    print(f"\n{path}: sound")


def _print_store(folder: Path, manifest: StoreManifest, json: bool) -> None:
    if json:
        print_json("store", {"folder": str(folder), "sha256": manifest.sha256, "manifest": manifest.model_dump(mode="json")})
        return
    print_table([{"file": name, "bytes": e.num_bytes, "digest": e.sha256[:12]} for name, e in manifest.files.items()])
    print(f"\n{folder}: store {manifest.sha256[:12]}")
