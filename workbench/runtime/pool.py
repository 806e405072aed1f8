"""Memory that readers fill and MLX computes on: one 2-D array of slots for records, one aligned block for PLE pages.

Facts of MLX 0.32 on the CPU that this rests on: `np.array(a, copy=False)` is a writable view of an evaluated array; its
buffer does not start on a page, so every slot has the same base shift; range slices and `.view` share memory, integer
indexing copies; a 1-D array over 2 GiB raises.
"""

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from workbench.geometry import COMPONENTS, Geometry
from workbench.model.experts import QuantizedMatrix
from workbench.units import PAGE_BYTES, align_up


def slot_stride_bytes(record_bytes: int) -> int:
    """Bytes a slot takes: the record, a page for its lead-in and a page for the base shift."""
    return align_up(record_bytes, PAGE_BYTES) + 2 * PAGE_BYTES


class RecordPool:
    """`num_slots` slots for expert records of one geometry.

    A slot holds the page-aligned window around a record, so the record starts at its own lead-in. Component views are
    built once for each slot and lead-in, and alias the slot whatever record it holds later.
    """

    def __init__(self, geometry: Geometry, num_slots: int) -> None:
        self.geometry = geometry
        self.num_slots = num_slots
        self.stride_bytes = slot_stride_bytes(geometry.record_bytes)
        self._array = mx.zeros((num_slots, self.stride_bytes), dtype=mx.uint8)
        mx.eval(self._array)
        self._bytes = np.array(self._array, copy=False)
        self._shift = -self._bytes.__array_interface__["data"][0] % PAGE_BYTES
        self._views: dict[tuple[int, int], Mapping[str, QuantizedMatrix]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_slots * self.stride_bytes

    def window(self, slot: int, num_bytes: int) -> np.ndarray:
        """Writable, page-aligned memory of `slot` for a window of `num_bytes`."""
        room = self.stride_bytes - self._shift
        if num_bytes > room:
            raise ValueError(f"a window of {num_bytes} bytes does not fit a slot of {room}")
        return self._bytes[slot, self._shift : self._shift + num_bytes]

    def record(self, slot: int, lead_in: int) -> np.ndarray:
        """The record's bytes in `slot`, `lead_in` bytes behind the start of its window."""
        start = self._shift + lead_in
        return self._bytes[slot, start : start + self.geometry.record_bytes]

    def components(self, slot: int, lead_in: int) -> Mapping[str, QuantizedMatrix]:
        """Gate, up and down of the record in `slot`, as MLX arrays that share the slot's memory."""
        key = (slot, lead_in)
        if key not in self._views:
            self._views[key] = self._build_views(slot, self._shift + lead_in)
        return self._views[key]

    def _build_views(self, slot: int, start: int) -> Mapping[str, QuantizedMatrix]:
        views = {}
        for name in COMPONENTS:
            num_bytes = self.geometry.component_bytes(name)
            views[name] = self._component_view(name, slot, start)
            start += num_bytes
        mx.eval([[m.words, m.scales, m.biases] for m in views.values()])
        return views

    def _component_view(self, name: str, slot: int, start: int) -> QuantizedMatrix:
        rows, columns = self.geometry.component_shape(name)
        codec = self.geometry.codec
        groups = columns // codec.group_size
        words_end = start + rows * columns * codec.bits // 8
        scales_end = words_end + 2 * rows * groups
        parts = (
            (start, words_end, mx.uint32),
            (words_end, scales_end, mx.bfloat16),
            (scales_end, 2 * scales_end - words_end, mx.bfloat16),
        )
        words, scales, biases = (
            self._array[slot : slot + 1, low:high].view(dtype).reshape(rows, -1) for low, high, dtype in parts
        )
        return QuantizedMatrix(words=words, scales=scales, biases=biases, bits=codec.bits, group_size=codec.group_size)


class PagePool:
    """`num_slots` page-aligned slots of `page_bytes` for n-gram pages; plain memory, MLX never sees it."""

    def __init__(self, num_slots: int, page_bytes: int) -> None:
        self.num_slots = num_slots
        self.page_bytes = page_bytes
        raw = np.zeros(num_slots * page_bytes + PAGE_BYTES, dtype=np.uint8)
        shift = -raw.__array_interface__["data"][0] % PAGE_BYTES
        self.pages = raw[shift : shift + num_slots * page_bytes].reshape(num_slots, page_bytes)
        """uint8 `[num_slots, page_bytes]`."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_slots * self.page_bytes
