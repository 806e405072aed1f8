"""`workbench verify`: reads every byte of a store and checks its digests, checksums, padding and geometry."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workbench.progress import progress
from workbench.stores.expert_header import FAMILIES
from workbench.stores.expert_major import ExpertStore
from workbench.stores.folder import check_digest, open_store
from workbench.stores.ple_pages import PleStore
from workbench.stores.regions import file_sha256
from workbench.stores.safetensors_file import SafetensorsFile


@dataclass(frozen=True, kw_only=True)
class Verified:
    """One file that passed its checks."""

    file: str
    num_bytes: int
    holds: str
    """What was checked, in words."""
    digest: str


def verify(path: Path) -> list[Verified]:
    """Checks a store folder, a single `.ple` file, or a single expert store (`.em2`, or a GGUF file that embeds one).

    Raises BadInput on the first damage or inconsistency.
    """
    path = Path(path)
    if path.is_file():
        with progress("verify", path.stat().st_size) as advance:
            return [_verify_ngrams(PleStore.open(path), advance) if path.suffix == ".ple" else _verify_file(path, advance)]
    return _verify_folder(path)


def _verify_file(path: Path, advance: Callable[[int], None]) -> Verified:
    return _verify_experts(ExpertStore.open(path), advance)


def _verify_folder(folder: Path) -> list[Verified]:
    store = open_store(folder)
    files = store.manifest.files
    with progress("verify", sum(entry.num_bytes for entry in files.values())) as advance:
        checked = [_verify_experts(store.experts, advance)]
        checked += [_verify_ngrams(ngrams, advance) for ngrams in store.ngrams.values()]
        for name in sorted(set(files) - {entry.file for entry in checked}):
            check_digest(folder, store.manifest, name, file_sha256(folder / name, advance).hex())
            entry = files[name]
            checked.append(Verified(file=name, num_bytes=entry.num_bytes, holds="SHA-256", digest=entry.sha256))
    SafetensorsFile(store.resident_path).close()
    return checked


def _verify_experts(store: ExpertStore, advance: Callable[[int], None]) -> Verified:
    store.verify(advance)
    shape = f"{len(store.layers)} layers x {store.num_experts} experts, {FAMILIES[store.header.family]}"
    checksums = ", a CRC-32 per component" if store.has_checksums else ""
    return Verified(
        file=store.path.name,
        num_bytes=store.header.store_bytes,
        holds=f"{shape}, format {store.storage_format}: header, padding, payload SHA-256{checksums}",
        digest=store.digest,
    )


def _verify_ngrams(store: PleStore, advance: Callable[[int], None]) -> Verified:
    store.verify(advance)
    return Verified(
        file=store.path.name,
        num_bytes=store.header.file_bytes,
        holds=f"{store.num_rows} rows in {store.num_pages} pages: header, padding, SHA-256 of the pages, a CRC-32 per page",
        digest=store.digest,
    )
