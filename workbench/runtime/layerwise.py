"""A second, independent reader of a store: whole layers and n-gram tables, read plainly and checked. Streaming must equal it.

A made store (profile `slice`) has no checkpoint that could run resident. This path shares no reader, scheduler, slot or page
pool with the streamed one; it holds one whole layer at a time.
"""

import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np

from workbench.errors import BadInput
from workbench.geometry import COMPONENTS, Geometry
from workbench.model.experts import QuantizedMatrix, stacked_expert_forward
from workbench.model.model import Model
from workbench.runtime.resident import load_tensors
from workbench.stores import Store
from workbench.stores.expert_major import ExpertStore
from workbench.stores.ple_pages import PleStore
from workbench.stores.verified import check_resident


class LayerwiseExperts:
    """Every routed expert of the layer that runs, as stacks; the previous layer's are dropped."""

    def __init__(self, geometry: Geometry, store: ExpertStore) -> None:
        self._geometry, self._store = geometry, store
        self._layer = -1
        self._stacks: list[QuantizedMatrix] = []

    def run(self, layer: int, hidden: mx.array, ids: mx.array) -> mx.array:
        """The experts `ids [T, k]` of `layer` on `hidden [T, H]`: `[T, k, H]`."""
        if layer != self._layer:
            # frees the layer before first: two of them may not fit
            self._stacks = []
            self._layer, self._stacks = layer, self._load(layer)
        outputs = stacked_expert_forward(hidden, ids, *self._stacks)
        mx.eval(outputs)
        return outputs

    def _load(self, layer: int) -> list[QuantizedMatrix]:
        store, record_bytes = self._store, self._geometry.record_bytes
        num_bytes = store.num_experts * record_bytes
        records = np.fromfile(store.path, np.uint8, num_bytes, offset=store.record(layer, 0).offset)
        if len(records) != num_bytes:
            raise BadInput(f"{store.path}: layer {layer} is cut off")
        return [self._matrix(layer, name, records.reshape(-1, record_bytes)) for name in COMPONENTS]

    def _matrix(self, layer: int, name: str, records: np.ndarray) -> QuantizedMatrix:
        part, codec = self._store.component_in_record(layer, name), self._geometry.codec
        rows, columns = self._geometry.component_shape(name)
        content = np.ascontiguousarray(records[:, part.offset : part.offset + part.num_bytes])
        for expert, bytes_of_expert in enumerate(content):
            crc = self._store.crc32(layer, expert, name)
            if crc is not None and zlib.crc32(bytes_of_expert) != crc:
                raise BadInput(f"{self._store.path}: layer {layer}, expert {expert}, {name}: checksum differs")
        scales = rows * columns * codec.bits // 8
        biases = scales + 2 * rows * columns // codec.group_size
        words = mx.array(np.ascontiguousarray(content[:, :scales]).view(np.uint32).reshape(len(content), rows, -1))
        matrix = QuantizedMatrix(
            words=words,
            scales=_float32(content[:, scales:biases], rows),
            biases=_float32(content[:, biases:], rows),
            bits=codec.bits,
            group_size=codec.group_size,
        )
        mx.eval(matrix.words, matrix.scales, matrix.biases)
        return matrix


def _float32(content: np.ndarray, rows: int) -> mx.array:
    """The bfloat16 bytes of each expert, `[E, rows, ...]`."""
    plain = np.ascontiguousarray(content).view(np.uint16).reshape(len(content), rows, -1)
    return mx.array(plain).view(mx.bfloat16).astype(mx.float32)


class WholeTables:
    """N-gram rows from every page of every n-gram store, in memory."""

    def __init__(self, stores: dict[int, PleStore]) -> None:
        self._stores = stores
        self._pages = {layer: _read_pages(store) for layer, store in stores.items()}

    def rows(self, layer: int, row_ids: np.ndarray) -> mx.array:
        """The rows `row_ids [T, heads]` of `layer`, float32 `[T, ple_embed_dim]`, heads side by side."""
        pages, places = self._stores[layer].locate(row_ids.ravel())
        values = self._stores[layer].decode(self._pages[layer], pages, places)
        return mx.array(values.reshape(len(row_ids), -1))


def _read_pages(store: PleStore) -> np.ndarray:
    num_pages = store.num_pages
    pages = np.fromfile(store.path, np.uint8, num_pages * store.page_bytes, offset=store.page(0).offset)
    pages = pages.reshape(num_pages, store.page_bytes)
    for number, page in enumerate(pages):
        if zlib.crc32(page.data) != store.page_crc32(number):
            raise BadInput(f"{store.path}: page {number}: checksum differs")
    return pages


def load_layerwise(store: Store) -> tuple[Model, LayerwiseExperts, WholeTables]:
    """Loads the model of a store folder without the streamed path. Raises BadInput on bytes that fail the store's checks."""
    check_resident(store)
    model = Model(store.geometry, load_tensors(Path(store.resident_path)))
    return model, LayerwiseExperts(store.geometry, store.experts), WholeTables(store.ngrams)
