"""Opens a store folder: manifest, headers and small files are checked, no record and no page is read."""

from dataclasses import dataclass
from pathlib import Path

from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.stores.expert_header import AFFINE_PLANAR
from workbench.stores.expert_major import ExpertStore
from workbench.stores.manifest import (
    CHECKSUMS_NAME,
    CONFIG_NAME,
    EXPERTS_NAME,
    RESIDENT_NAME,
    ExpertEntry,
    NgramEntry,
    StoreManifest,
    geometry_fields,
    ngrams_name,
    read_manifest,
)
from workbench.stores.ple_pages import PleStore
from workbench.stores.regions import file_sha256

_STORE_SUFFIXES = (".em2", ".ple")
_LARGE_NAMES = (RESIDENT_NAME,)


@dataclass(frozen=True, kw_only=True)
class Store:
    """An open store folder."""

    folder: Path
    geometry: Geometry
    manifest: StoreManifest
    experts: ExpertStore
    ngrams: dict[int, PleStore]
    """Page stores by zero-based layer index."""

    @property
    def resident_path(self) -> Path:
        """File of every tensor that is neither routed experts nor n-gram tables."""
        return self.folder / RESIDENT_NAME

    @property
    def digest(self) -> str:
        """Identity of the whole folder: SHA-256 of its manifest, in hex."""
        return self.manifest.sha256


def open_to_run(folder: Path) -> Store:
    """Opens a store to compute on it. Raises as `open_store` does, and BadInput when its experts are not stored planar."""
    store = open_store(folder)
    if store.experts.storage_format != AFFINE_PLANAR:
        raise BadInput(
            f"{folder} stores experts in format {store.experts.storage_format}, which can be verified and exchanged but not run: "
            "pack the checkpoint again with --format 2"
        )
    return store


def open_store(folder: Path) -> Store:
    """Opens a store. Raises BadInput on the first damage or inconsistency, UnmetPrerequisite when there is no store."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    names = {CONFIG_NAME, RESIDENT_NAME, EXPERTS_NAME, CHECKSUMS_NAME, *(ngrams_name(e.layer) for e in manifest.ngrams)}
    if missing := sorted(names - set(manifest.files)):
        raise BadInput(f"{folder}: its manifest lacks {missing[0]} (damaged: pack again)")
    for name in manifest.files:
        if not name.endswith(_STORE_SUFFIXES) and name not in _LARGE_NAMES:
            check_digest(folder, manifest, name, file_sha256(folder / name).hex())
    geometry = Geometry.from_folder(folder)
    if geometry_fields(geometry) != manifest.geometry:
        raise BadInput(f"{folder}: config.json and manifest.json disagree on the geometry (damaged: pack again)")
    experts = ExpertStore.open(folder / EXPERTS_NAME, geometry=geometry)
    check_digest(folder, manifest, EXPERTS_NAME, experts.header_digest)
    _check_experts(folder, manifest, experts)
    ngrams = {entry.layer: _open_ngrams(folder, manifest, geometry, entry) for entry in manifest.ngrams}
    if sorted(ngrams) != sorted(geometry.ple_layers):
        raise BadInput(f"{folder}: n-gram tables of layers {sorted(ngrams)}, the model has {sorted(geometry.ple_layers)}")
    return Store(folder=folder, geometry=geometry, manifest=manifest, experts=experts, ngrams=ngrams)


def check_digest(folder: Path, manifest: StoreManifest, name: str, digest: str) -> None:
    """Refuses a file whose digest is not the manifest's."""
    if digest != manifest.files[name].sha256:
        raise BadInput(f"{folder / name}: its digest is not the manifest's (damaged: pack again)")


def _check_experts(folder: Path, manifest: StoreManifest, experts: ExpertStore) -> None:
    codec, header = experts.codec, experts.header
    found = ExpertEntry(
        storage_format=header.storage_format,
        bits=codec.bits if codec else 0,
        group_size=codec.group_size if codec else 0,
        layers=tuple(layer.layer for layer in experts.layers),
        payload_sha256=experts.digest,
    )
    source = manifest.source
    if found != manifest.experts or (source.sha256, source.num_bytes, source.num_tensors) != (
        header.source_sha256.hex(),
        header.source_bytes,
        header.num_source_tensors,
    ):
        raise BadInput(f"{folder}: {EXPERTS_NAME} is not the store its manifest describes (damaged: pack again)")


def _open_ngrams(folder: Path, manifest: StoreManifest, geometry: Geometry, entry: NgramEntry) -> PleStore:
    name = ngrams_name(entry.layer)
    store = PleStore.open(folder / name)
    check_digest(folder, manifest, name, store.digest)
    found = NgramEntry(
        layer=store.layer, codec=store.codec.kind.name.lower(), page_bytes=store.page_bytes, num_rows=store.num_rows
    )
    if found != entry or store.header.source_sha256.hex() != manifest.source.sha256:
        raise BadInput(f"{folder}: {name} is not the store its manifest describes (damaged: pack again)")
    if entry.layer not in geometry.ple_layers:
        raise BadInput(f"{folder}: {name}: layer {entry.layer} of this model reads no n-gram rows")
    shape = geometry.ple_num_rows(geometry.ple_layers.index(entry.layer)), geometry.ple_row_width
    if (store.num_rows, store.row_width) != shape:
        raise BadInput(f"{folder}: {name} has rows {store.num_rows} x {store.row_width}, the model {shape[0]} x {shape[1]}")
    return store
