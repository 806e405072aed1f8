"""The whole state of a sequence, transactions over all of it, and commits of a block's prefix."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from workbench.geometry import Geometry
from workbench.model.cache import QsaCache
from workbench.model.inputs import BlockInputs, RowInputs
from workbench.model.ngram import NgramContext

LONGEST_BLOCK = 8
"""Tokens of the longest block. A block equals single tokens bit for bit; a longer pass is a tile and may round differently."""


@dataclass(slots=True)
class _Transaction:
    """The state at `begin`, by reference, and the block that followed."""

    position: int
    context: NgramContext
    arrays: dict[str, mx.array]
    lengths: dict[int, int]
    """Lengths of the QSA caches, by layer."""
    num_passes: int = 0
    """Number of passes that have ended."""
    tokens: np.ndarray | None = None
    """`[T]` of the block; None unless a block was the only pass."""
    inputs: dict[str, BlockInputs] = field(default_factory=dict)
    """Inputs of the block, by the name of the array that received them."""

    def is_block(self, num_tokens: int) -> bool:
        """Whether the pass under way, over `num_tokens` tokens, is the block of this transaction."""
        return 1 < num_tokens <= LONGEST_BLOCK and self.num_passes == 0

    def end_pass(self, tokens: np.ndarray, wide: mx.array, logits: mx.array) -> None:
        """Completes the inputs of a block; drops them when the pass has no prefixes or is a second one."""
        if self.is_block(len(tokens)) and len(logits) == len(tokens):
            self.tokens = tokens
            self.inputs |= {"wide": RowInputs(wide), "logits": RowInputs(logits)}
        else:
            self.tokens = None
            self.inputs.clear()
        self.num_passes += 1


class SequenceState:
    """The whole state of one sequence. `begin`, then `commit` or `abort`.

    `arrays` holds arrays replaced as a whole each pass (recurrent and convolution states, the last wide residual, the last
    logits); `caches` the QSA caches by layer, the MTP head's included.
    """

    def __init__(self, geometry: Geometry, *, follow_mtp: bool = False) -> None:
        """`follow_mtp`: passes of the trunk advance the MTP head's cache too."""
        self.position = 0
        self.context = NgramContext(geometry)
        self.arrays: dict[str, mx.array] = {}
        self.caches: dict[int, QsaCache] = {}
        self.follows_mtp = follow_mtp
        self._mtp_layer = geometry.num_hidden_layers
        self._open: _Transaction | None = None

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self._open is not None

    def keeps(self, num_tokens: int) -> bool:
        """Whether stages must `keep` their inputs of the pass under way, over `num_tokens` tokens."""
        return self._open is not None and self._open.is_block(num_tokens)

    def keep(self, name: str, inputs: BlockInputs) -> None:
        """Keeps the inputs that the pass under way gives to `arrays[name]`, until the transaction ends.

        Raises ValueError when no transaction is open.
        """
        self._transaction.inputs[name] = inputs

    def advance(self, tokens: np.ndarray, wide: mx.array, logits: mx.array) -> None:
        """Ends a pass over `tokens [T]`: moves the position on and keeps the last token's wide residual and logits.

        Args:
            tokens: ids `[T]`.
            wide: residual behind the last layer `[T, hc_count * H]`.
            logits: `[T, vocab]`, or `[1, vocab]` of the last token; no prefix of the pass can be committed then.
        """
        if self._open is not None:
            self._open.end_pass(tokens, wide, logits)
        self.position += len(tokens)
        self.context = self.context.after(tokens)
        self.arrays["wide"] = _last_row(wide)
        self.arrays["logits"] = _last_row(logits)

    def forget_drafts(self) -> None:
        """Drops the pairs that draft steps appended to the MTP head's cache: pairs whose second token isn't in the sequence."""
        cache = self.caches[self._mtp_layer]
        cache.length = min(cache.length, max(self.position - 1, 0))

    def begin(self) -> None:
        """Opens a transaction. Raises ValueError when one is open."""
        if self._open is not None:
            raise ValueError("a transaction is already open")
        lengths = {layer: cache.length for layer, cache in self.caches.items()}
        self._open = _Transaction(self.position, self.context, dict(self.arrays), lengths)

    def commit(self, num_tokens: int | None = None) -> None:
        """Ends the transaction and keeps the first `num_tokens` tokens since `begin`; by default all, 0 is an abort.

        Fewer tokens than the transaction holds can be kept only of a block: one pass of 2 to `LONGEST_BLOCK` tokens with the
        logits of every token. Raises ValueError, and leaves the transaction open, when the tokens can't be kept so; raises
        ValueError when no transaction is open.
        """
        block = self._transaction
        if num_tokens == 0:
            self._restore(block)
        elif num_tokens is not None and num_tokens != self.position - block.position:
            self._keep_prefix(block, num_tokens)
        self._close()
        if block.inputs:
            # arrays not yet computed would keep the block's inputs alive until the next pass
            mx.async_eval(*self.arrays.values())

    def _keep_prefix(self, block: _Transaction, num_tokens: int) -> None:
        held = self.position - block.position
        if not 0 < num_tokens < held:
            raise ValueError(f"{num_tokens} tokens can't be committed: the transaction holds {held}")
        if block.tokens is None:
            raise ValueError(
                f"{num_tokens} of {held} tokens can't be committed: only one pass of at most {LONGEST_BLOCK} tokens, "
                "with the logits of every token, has prefixes"
            )
        self.position = block.position + num_tokens
        self.context = block.context.after(block.tokens[:num_tokens])
        # looked up by the arrays' names, so that a stage that kept no inputs raises KeyError
        self.arrays = {name: block.inputs[name].state_after(num_tokens) for name in self.arrays}
        for layer, length in block.lengths.items():
            self.caches[layer].length = min(self.caches[layer].length, length + num_tokens)

    def abort(self) -> None:
        """Restores everything as it was at `begin`. Raises ValueError when no transaction is open."""
        self._restore(self._transaction)
        self._close()

    def _restore(self, saved: _Transaction) -> None:
        self.position, self.context, self.arrays = saved.position, saved.context, saved.arrays
        for layer, length in saved.lengths.items():
            self.caches[layer].length = length

    @property
    def _transaction(self) -> _Transaction:
        if self._open is None:
            raise ValueError("no transaction is open")
        return self._open

    def _close(self) -> None:
        self._open = None
        if self.follows_mtp:
            self.forget_drafts()

    def digest(self) -> str:
        """SHA-256 of the trunk's state: names, shapes and little-endian bytes of all arrays and caches, in a fixed order.

        The MTP head's cache is listed as empty: the digest is the same with and without drafts.
        """
        return _sha256(self._canonical())

    def draft_digest(self) -> str:
        """SHA-256 of the MTP head's cache. Raises ValueError when the checkpoint has no MTP head."""
        if self._mtp_layer not in self.caches:
            raise ValueError("this checkpoint has no MTP head")
        return _sha256(self._cached(self._mtp_layer, self.caches[self._mtp_layer].length))

    def _canonical(self) -> Iterator[tuple[str, np.ndarray]]:
        yield "position", np.array(self.position, np.int64)
        yield "context", np.array(self.context.tokens, np.int64)
        for name in sorted(self.arrays):
            yield name, np.array(self.arrays[name])
        for layer in sorted(self.caches):
            yield from self._cached(layer, 0 if layer == self._mtp_layer else self.caches[layer].length)

    def _cached(self, layer: int, num_tokens: int) -> Iterator[tuple[str, np.ndarray]]:
        for name, array in self.caches[layer].arrays(num_tokens).items():
            yield f"qsa.{layer}.{name}", np.array(array)


def _last_row(rows: mx.array) -> mx.array:
    # contiguous: a mere view would keep all rows
    return rows if len(rows) == 1 else mx.contiguous(rows[-1:])


def _sha256(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    sha = hashlib.sha256()
    for name, array in arrays:
        sha.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
