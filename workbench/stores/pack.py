"""`workbench pack`: a checkpoint becomes a store folder."""

from pathlib import Path

from workbench.geometry import Codec
from workbench.progress import progress
from workbench.stores.account import check_account
from workbench.stores.build import BuildSettings, StoreBuilder
from workbench.stores.checkpoint import TOKENIZER_NAMES, Checkpoint
from workbench.stores.manifest import StoreManifest
from workbench.stores.tokenizer_file import check_token_ids


def pack(checkpoint: Path, out: Path, *, settings: BuildSettings = BuildSettings(), codec: Codec | None = None) -> StoreManifest:  # noqa: B008
    """Packs a checkpoint folder into `out`, layer by layer; resumes an interrupted run.

    Args:
        checkpoint: folder with config.json and safetensors files.
        out: the store folder; it must be new, empty, or an interrupted pack of the same checkpoint.
        settings: layout of the store.
        codec: codec for experts that are not quantised yet.
    """
    with Checkpoint(checkpoint, codec=codec) as source:
        check_account(source)
        if (tokenizer := source.folder / TOKENIZER_NAMES[0]).is_file():
            check_token_ids(tokenizer, source.geometry.vocab_size)
        with progress("hash source", source.num_bytes) as advance:
            source.identify(advance)
        return StoreBuilder(source, settings, {"command": "pack"}).build(Path(out))
