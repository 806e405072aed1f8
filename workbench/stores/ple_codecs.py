"""How one n-gram row is stored: weight, scale and bias bytes together, so that a row is one read."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from workbench.errors import BadInput
from workbench.geometry import Codec
from workbench.stores.codecs import bf16_to_float32, decode_affine

AFFINE_ROWS = Codec(bits=4, group_size=32)
"""The affine codec of rows."""


class RowKind(IntEnum):
    """Codecs of a page store, by their number in its header."""

    BF16 = 0
    AFFINE4 = 1


@dataclass(frozen=True, kw_only=True)
class RowCodec:
    """Encodes and decodes rows of `row_width` values."""

    kind: RowKind
    row_width: int

    def __post_init__(self) -> None:
        if self.kind is RowKind.AFFINE4 and self.row_width % AFFINE_ROWS.group_size:
            raise BadInput(
                f"rows of {self.row_width} values can't be affine 4-bit: their width must be a multiple of "
                f"{AFFINE_ROWS.group_size} (use bf16)"
            )

    @staticmethod
    def default(row_width: int) -> "RowCodec":
        """The default codec for rows of this width: affine 4-bit if the width allows it, else bf16."""
        affine = row_width % AFFINE_ROWS.group_size == 0
        return RowCodec(kind=RowKind.AFFINE4 if affine else RowKind.BF16, row_width=row_width)

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return 2 * self.row_width if self.kind is RowKind.BF16 else AFFINE_ROWS.matrix_bytes(1, self.row_width)

    def join(self, words: np.ndarray, scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
        """`[n, row bytes]` uint8 of affine rows."""
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in (words, scales, biases)], axis=1)

    def decode(self, rows: np.ndarray) -> np.ndarray:
        """`[n, row bytes]` uint8, contiguous, as `[n, row width]` float32."""
        if self.kind is RowKind.BF16:
            return bf16_to_float32(rows.view("<u2"))
        words, scales = self.row_width // 2, self.row_width // AFFINE_ROWS.group_size * 2
        parts = rows[:, :words], rows[:, words : words + scales], rows[:, words + scales :]
        packed, *others = (np.ascontiguousarray(part) for part in parts)
        return decode_affine(packed.view("<u4"), others[0].view("<u2"), others[1].view("<u2"), AFFINE_ROWS)
