"""Memory that readers fill and MLX computes on: one 2-D array of slots for records, one aligned block for PLE pages.

Facts of MLX 0.32 on the CPU that this rests on: `np.array(a, copy=False)` is a writable view of an evaluated array; its
buffer does not start on a page, so every slot has the same base shift; range slices, `.view` and `as_strided` share memory,
integer indexing copies; a 1-D array over 2 GiB raises; `quantized_matmul` of float32 by bfloat16 scales converts them at each
call, and `gather_qmm` then converts those of the whole stack.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from workbench.geometry import COMPONENTS, Geometry
from workbench.hardware import prefer_huge_pages
from workbench.model.experts import QuantizedMatrix
from workbench.units import KIB, PAGE_BYTES, align_up

SMALL_RECORD_BYTES = 256 * KIB
"""Records up to this size keep float32 copies of their scales in the slot, and all experts of a layer run in one gather.

Dispatch rules their time: on mini one gather took 0.3 ms where ten products on bfloat16 scales took 0.5. At 2.7 MB a product
takes a millisecond, dispatch is nothing, and the copies would cost a fifth of the cache.
"""


def slot_stride_bytes(geometry: Geometry, granule: int) -> int:
    """Bytes a slot takes: the record, a page for its lead-in, one for the base shift, and float32 scales of small records.

    `granule` divides every lead-in; the float32 scales must clear the longest lead-in and the longest tail of a window.
    """
    float32_bytes = float32_scales_bytes(geometry)
    plain = align_up(geometry.record_bytes, PAGE_BYTES) + 2 * PAGE_BYTES
    slack = PAGE_BYTES + 2 * (PAGE_BYTES - granule)
    return max(plain, align_up(geometry.record_bytes + slack + float32_bytes, PAGE_BYTES)) if float32_bytes else plain


def float32_scales_bytes(geometry: Geometry) -> int:
    """Bytes of a slot's float32 scales and biases; 0 for large records."""
    if geometry.record_bytes > SMALL_RECORD_BYTES:
        return 0
    values = sum(math.prod(geometry.component_shape(name)) for name in COMPONENTS)
    return 2 * 4 * values // geometry.codec.group_size


class RecordMemory:
    """`num_slots` slots for expert records of one geometry.

    A slot holds the page-aligned window around a record, so the record starts at its own lead-in, and nothing is moved. MLX
    sees it in one of two ways. Small records: the memory is one stack of overlapping entries, `granule` bytes apart, and a
    record is the entry that starts where it starts; its float32 scales lie at a fixed distance behind it. Large records:
    views of each component, built once for each slot and lead-in. Both alias the slot, whatever record it holds later.
    """

    def __init__(self, geometry: Geometry, num_slots: int, granule: int) -> None:
        """`granule`: a divisor of a page and of every lead-in, and a multiple of 4."""
        if PAGE_BYTES % granule or granule % 4:
            raise ValueError(f"granule {granule} must divide {PAGE_BYTES} and be a multiple of 4")
        self.geometry = geometry
        self.num_slots = num_slots
        self.stride_bytes = slot_stride_bytes(geometry, granule)
        self.small = float32_scales_bytes(geometry) > 0
        self._granule = granule
        self._array = mx.zeros((num_slots, self.stride_bytes), dtype=mx.uint8)
        mx.eval(self._array)
        self._bytes = np.array(self._array, copy=False)
        address = self._bytes.__array_interface__["data"][0]
        prefer_huge_pages(address, self.num_bytes)
        self._shift = -address % PAGE_BYTES
        self._flat = self._bytes.reshape(-1)
        self._views: dict[int, Mapping[str, QuantizedMatrix]] = {}
        self._scale_views: dict[tuple[int, int], Mapping[str, tuple[np.ndarray, np.ndarray]]] = {}
        self._layouts = _component_layouts(geometry, granule)
        self.stack: Mapping[str, QuantizedMatrix] = self._build_stack() if self.small else {}
        """Gate, up and down of every record in the memory, by `entry`; empty for large records."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.stride_bytes

    def window(self, slot: int, num_bytes: int) -> np.ndarray:
        """Writable, page-aligned memory of `slot` for a window of `num_bytes`."""
        return self._bytes[slot, self._shift : self._shift + num_bytes]

    def move(self, old: int, new: int) -> None:
        """Copies the bytes of slot `old` to slot `new`."""
        self._bytes[new] = self._bytes[old]

    def offset(self, slot: int) -> int:
        """Bytes from the start of the memory to the window of `slot`, which starts on a page."""
        return slot * self.stride_bytes + self._shift

    def memory(self, start: int, num_bytes: int) -> np.ndarray:
        """Writable bytes from `start` on, whatever slots they belong to."""
        return self._flat[start : start + num_bytes]

    def record(self, slot: int, lead_in: int) -> np.ndarray:
        """The record's bytes in `slot`, `lead_in` bytes behind the start of its window."""
        start = self._shift + lead_in
        return self._bytes[slot, start : start + self.geometry.record_bytes]

    def entry(self, slot: int, lead_in: int) -> int:
        """Index into `stack` of the record in `slot`."""
        return (slot * self.stride_bytes + lead_in) // self._granule

    def arrived(self, slot: int, lead_in: int, components: Iterable[str]) -> None:
        """Makes the float32 scales of `components`, whose bytes are in the slot; nothing for large records."""
        if not self.small:
            return
        place = slot, lead_in
        if place not in self._scale_views:
            self._scale_views[place] = {name: self._scales(slot, lead_in, layout) for name, layout in self._layouts.items()}
        views = self._scale_views[place]
        for name in components:
            bfloat16, float32 = views[name]
            np.left_shift(bfloat16, 16, out=float32, dtype=np.uint32)

    def _scales(self, slot: int, lead_in: int, layout: "_ComponentLayout") -> tuple[np.ndarray, np.ndarray]:
        """Views of a component's bfloat16 scales and biases, and of their float32 copies."""
        row, start = self._bytes[slot], self._shift + lead_in
        copies, num_bytes = start + layout.float32, layout.end - layout.scales
        bfloat16, float32 = row[start + layout.scales : start + layout.end], row[copies : copies + 2 * num_bytes]
        return bfloat16.view("<u2"), float32.view("<u4")

    def components(self, slot: int, lead_in: int) -> Mapping[str, QuantizedMatrix]:
        """Gate, up and down of the record in `slot`, as MLX arrays that share the slot's memory."""
        return self.components_at(self.offset(slot) + lead_in)

    def components_at(self, start: int) -> Mapping[str, QuantizedMatrix]:
        """Gate, up and down of the record `start` bytes behind the start of the memory, which may lie across slots."""
        if start not in self._views:
            first, last = start // self.stride_bytes, (start + self.geometry.record_bytes - 1) // self.stride_bytes
            # of these slots alone: MLX has no flat array over 2 GiB
            flat, inside = self._array[first : last + 1].reshape(-1), start - first * self.stride_bytes
            self._views[start] = {name: self._view(layout, flat, inside) for name, layout in self._layouts.items()}
        return self._views[start]

    def _view(self, layout: "_ComponentLayout", flat: mx.array, start: int) -> QuantizedMatrix:
        bounds = (
            (layout.words, layout.scales, mx.uint32),
            (layout.scales, layout.biases, mx.bfloat16),
            (layout.biases, layout.end, mx.bfloat16),
        )
        words, scales, biases = (
            flat[start + low : start + high].view(dtype).reshape(layout.rows, -1) for low, high, dtype in bounds
        )
        mx.eval(words, scales, biases)
        codec = self.geometry.codec
        return QuantizedMatrix(words=words, scales=scales, biases=biases, bits=codec.bits, group_size=codec.group_size)

    def _build_stack(self) -> Mapping[str, QuantizedMatrix]:
        return {name: self._stacked(layout) for name, layout in self._layouts.items()}

    def _stacked(self, layout: "_ComponentLayout") -> QuantizedMatrix:
        """The memory as overlapping entries `granule` bytes apart; only entries that start a record are ever indexed."""
        entries = self.num_slots * self.stride_bytes // self._granule
        scales_bytes = 2 * (layout.biases - layout.scales)

        def strided(dtype: mx.Dtype, start: int, row_bytes: int) -> mx.array:
            shape = (entries, layout.rows, row_bytes // 4)
            strides = (self._granule // 4, row_bytes // 4, 1)
            return mx.as_strided(self._array.view(dtype), shape, strides, (self._shift + start) // 4)

        words = strided(mx.uint32, layout.words, (layout.scales - layout.words) // layout.rows)
        scales = strided(mx.float32, layout.float32, scales_bytes // layout.rows)
        biases = strided(mx.float32, layout.float32 + scales_bytes, scales_bytes // layout.rows)
        mx.eval(words, scales, biases)
        codec = self.geometry.codec
        return QuantizedMatrix(words=words, scales=scales, biases=biases, bits=codec.bits, group_size=codec.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ComponentLayout:
    """Where one component lies, in bytes from the start of its record."""

    rows: int
    words: int
    scales: int
    biases: int
    end: int
    float32: int
    """Its float32 scales, then biases: behind the longest window that a read fills, whatever the lead-in."""


def _component_layouts(geometry: Geometry, granule: int) -> Mapping[str, _ComponentLayout]:
    layouts, start = {}, 0
    float32 = geometry.record_bytes + PAGE_BYTES - granule
    for name in COMPONENTS:
        rows, columns = geometry.component_shape(name)
        scales = start + rows * columns * geometry.codec.bits // 8
        biases = scales + 2 * rows * columns // geometry.codec.group_size
        end = 2 * biases - scales
        layouts[name] = _ComponentLayout(rows=rows, words=start, scales=scales, biases=biases, end=end, float32=float32)
        start, float32 = end, float32 + 2 * (end - scales)
    return layouts


class PageMemory:
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
        """Bytes of all slots."""
        return self.num_slots * self.page_bytes
