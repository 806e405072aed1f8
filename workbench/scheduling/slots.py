"""The slot table: equal slots, the key that each slot holds, the pins on the key, and the generation of the slot.

A slot is free, filling (admitted, bytes on their way), resident, draining (given up while a read still writes into it) or
lent (reserved as memory in one piece). A pinned slot is never evicted, lent nor overwritten; a filling slot is pinned by its
own read.
"""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from workbench.errors import BadInput

SequencePoint = tuple[int, int]
"""A point of a sequence: position of a pass's first token, then layer. Points compare in the order of computing."""


class EvictionPolicy(Protocol):
    """Interface of an eviction policy; `workbench.policies.base.Policy` has the same methods."""

    def start_event(self) -> None:
        """A token's top-k of one layer, or a block's union, begins."""

    def touch(self, keys: Sequence[int]) -> None:
        """A demand uses these present keys."""

    def admit(self, keys: Sequence[int]) -> None:
        """A demand admits these keys."""

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """Removes and returns `count` keys, none of `protected` (pinned, or predicted and awaited), worst first."""

    def forget(self, key: int) -> None:
        """Removes a key that left without an eviction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Slots reserved as one piece of memory until `take_back`."""

    slots: range
    moves: Mapping[int, tuple[int, int]]
    """Old and new slot of each resident key in these slots: the caller copies its bytes."""
    evicted: tuple[int, ...]
    """Keys evicted to make room."""


class SlotTable:
    """Which slot holds which key. Admission is all or nothing."""

    def __init__(self, num_slots: int, policy: EvictionPolicy, *, min_slots: int = 1) -> None:
        """Raises BadInput with both figures when the pool is smaller than one token's working set."""
        if num_slots < min_slots:
            raise BadInput(f"{num_slots} slots are below one token's working set of {min_slots} slots: give the cache more bytes")
        self.num_slots = num_slots
        self.policy = policy
        self._slot: dict[int, int] = {}
        self._pins: dict[int, int] = {}
        self._resident: set[int] = set()
        self._free = list(range(num_slots - 1, -1, -1))
        self._generation = [0] * num_slots
        self._generations = itertools.count(1)
        self._reads = [0] * num_slots
        self._draining: set[int] = set()
        self._first_lent = num_slots
        self._protected: dict[int, tuple[int, SequencePoint]] = {}
        self._unused: dict[int, bool] = {}

    def slot_of(self, key: int) -> int | None:
        """The slot that holds `key` or is being filled with it."""
        return self._slot.get(key)

    def slot(self, key: int) -> int:
        """The slot of `key`. Raises KeyError when the key has none."""
        return self._slot[key]

    def partition(self, keys: Sequence[int]) -> tuple[list[int], list[int]]:
        """Splits keys into those with a slot and those without."""
        held = self._slot
        present = [key for key in keys if key in held]
        return present, [] if len(present) == len(keys) else [key for key in keys if key not in held]

    @property
    def resident(self) -> AbstractSet[int]:
        """Resident keys: a live set, not a copy."""
        return self._resident

    def is_resident(self, key: int) -> bool:
        """Whether all bytes of `key` are in its slot."""
        return key in self._resident

    def generation(self, slot: int) -> int:
        """Generation of a slot: a number that no other use of any slot has had."""
        return self._generation[slot]

    def num_pins(self, key: int) -> int:
        """Pins of `key`: demands, and the read that fills its slot."""
        return self._pins.get(key, 0)

    @property
    def resident_keys(self) -> frozenset[int]:
        """Resident keys."""
        return frozenset(self._resident)

    @property
    def num_free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def num_draining(self) -> int:
        """Number of draining slots: discarded while a read still writes into them."""
        return len(self._draining)

    @property
    def num_lent(self) -> int:
        """Number of lent slots."""
        return self.num_slots - self._first_lent

    @property
    def capacity(self) -> int:
        """Slots that are not lent: the most keys that one demand may pin."""
        return self._first_lent

    @property
    def num_available(self) -> int:
        """Number of slots that an admission could take now: free slots and slots of keys without pins."""
        return len(self._free) + len(self._slot) - len(self._pins)

    def pin(self, key: int) -> int:
        """Pins `key` in its slot; returns the slot."""
        slot = self._slot[key]
        self._pins[key] = self._pins.get(key, 0) + 1
        return slot

    def pin_all(self, keys: Iterable[int], into: dict[int, int]) -> None:
        """Pins `keys` in their slots; adds the slot of each key to `into`."""
        slots, pins = self._slot, self._pins
        for key in keys:
            into[key] = slots[key]
            pins[key] = pins.get(key, 0) + 1

    def unpin(self, key: int) -> None:
        """Ends one pin of `key`. Raises KeyError when the key has none."""
        self.unpin_all((key,))

    def unpin_all(self, keys: Iterable[int]) -> None:
        """Ends one pin of each key. Raises KeyError when a key has none."""
        pins = self._pins
        for key in keys:
            count = pins[key] - 1
            if count:
                pins[key] = count
            else:
                del pins[key]

    @property
    def num_protected(self) -> int:
        """Keys that `protect` keeps from eviction."""
        return len(self._protected)

    def protect(self, key: int, request: int, point: SequencePoint) -> None:
        """Evicts `key`, predicted for a point in the sequence of `request`, only when no other key can be evicted."""
        self._protected[key] = request, point

    def unprotect(self, request: int, point: SequencePoint | None = None) -> None:
        """Ends the protection of keys predicted for `request` up to `point` (default: all); unused ones are evicted first."""
        ended = [key for key, (by, at) in self._protected.items() if by == request and (point is None or at <= point)]
        for key in ended:
            del self._protected[key]

    def touch(self, keys: Sequence[int]) -> None:
        """A demand uses these keys, which have slots. The policy learns of a predicted key at its first use."""
        if not self._unused:
            self.policy.touch(keys)
            return
        first = [key for key in keys if self._unused.pop(key, False)]
        self.policy.touch([key for key in keys if key not in first])
        self.policy.admit(first)

    def admit(self, keys: Sequence[int], *, predicted: bool = False) -> list[int]:
        """Chooses a slot for each new key, free or of an evicted key, and pins it once for the read. Returns evicted keys.

        `predicted`: no demand has used the keys, and the policy does not know them until one does.
        Raises ValueError, before anything changes, when `num_available` is too small or a key has a slot already.
        """
        if len(keys) > self.num_available or not self._slot.keys().isdisjoint(keys):
            raise ValueError(
                f"{len(keys)} keys can't be admitted: {self.num_available} slots are to be had, or one is there already"
            )
        for key in keys:
            self._pins[key] = 1
        # a policy that learns from admissions (ARC, S3-FIFO) must know the new keys before it chooses victims
        if predicted:
            self._unused.update(dict.fromkeys(keys, True))
        else:
            self.policy.admit(keys)
        victims = self._evict(len(keys) - len(self._free))
        for key in keys:
            slot = self._free.pop()
            self._slot[key] = slot
            self._generation[slot] = next(self._generations)
        return victims

    def _evict(self, count: int) -> list[int]:
        """Evicts `count` keys, protected ones only when no others are left."""
        if count <= 0:
            return []
        victims: list[int] = []
        if self._protected:
            kept = self._pins.keys() | self._protected.keys()
            num_others = len(self._slot) - len(kept & self._slot.keys())
            victims = self._worst(min(count, num_others), kept)
        victims += self._worst(count - len(victims), self._pins)
        if len(victims) != count or not self._pins.keys().isdisjoint(victims):
            raise ValueError(f"policy gave {victims} when asked for {count} keys that are not pinned")
        for key in victims:
            self._resident.discard(key)
            self._vacate(key)
        return victims

    def _worst(self, count: int, kept: Container[int]) -> list[int]:
        """Keys to evict, none of them in `kept`: unused predicted keys first, then the policy's choice."""
        if not self._unused:
            return self.policy.evict(count, kept)
        victims = list(itertools.islice((key for key in self._unused if key not in kept), count))
        for key in victims:
            del self._unused[key]
        if len(victims) < count:
            victims += self.policy.evict(count - len(victims), kept)
        return victims

    def begin_read(self, key: int) -> tuple[int, int]:
        """Registers a read into the slot of `key`; returns the slot and the generation that may publish the read."""
        slot = self._slot[key]
        self._reads[slot] += 1
        return slot, self._generation[slot]

    def end_read(self, slot: int, generation: int) -> bool:
        """Ends a read into `slot`, successful or not; returns whether its generation still owns the slot."""
        self._reads[slot] -= 1
        if slot in self._draining and not self._reads[slot]:
            self._draining.discard(slot)
            self._free.append(slot)
        return self._generation[slot] == generation

    def publish(self, key: int, generation: int) -> bool:
        """Marks `key` resident and ends the pin of its read; False, and nothing happens, when the generation is stale."""
        slot = self._slot.get(key)
        if slot is None or self._generation[slot] != generation:
            return False
        self._resident.add(key)
        self.unpin(key)
        return True

    def discard(self, key: int) -> None:
        """Frees the slot of a key that is being filled, with all pins. The slot is free once no read writes into it."""
        if key in self._resident:
            raise ValueError(f"key {key} is resident: it leaves by eviction only")
        del self._pins[key]
        self._forget(key)
        self._vacate(key)

    def drop(self, key: int) -> bool:
        """Removes a resident key; False, and nothing happens, while the key is pinned or when it is not resident."""
        if key in self._pins or key not in self._resident:
            return False
        self._forget(key)
        self._resident.discard(key)
        self._vacate(key)
        return True

    def lend(self, count: int) -> Loan | None:
        """Reserves the last `count` slots: evicts the policy's worst keys and moves the other keys in these slots.

        None, and nothing happens, while one of these slots is pinned or drains, or too many other slots are pinned. Raises
        ValueError when slots are lent already.
        """
        if self.num_lent or not 0 < count < self.num_slots:
            raise ValueError(f"can't lend {count} of {self.num_slots} slots, {self.num_lent} of them lent already")
        first = self.num_slots - count
        lodgers = [key for key, slot in self._slot.items() if slot >= first]
        room = first - len(self._draining)
        if len(self._pins) > room or any(key in self._pins for key in lodgers) or any(s >= first for s in self._draining):
            return None
        evicted = self._evict(len(self._slot) - room)
        self._first_lent = first
        self._free = [slot for slot in self._free if slot < first]
        moves = {key: (self._slot[key], self._move(key)) for key in lodgers if key in self._slot}
        return Loan(slots=range(first, self.num_slots), moves=moves, evicted=tuple(evicted))

    def take_back(self) -> None:
        """Makes the lent slots free again."""
        self._free += range(self._first_lent, self.num_slots)
        self._first_lent = self.num_slots

    def _move(self, key: int) -> int:
        slot = self._slot[key] = self._free.pop()
        self._generation[slot] = next(self._generations)
        return slot

    def _forget(self, key: int) -> None:
        if not self._unused.pop(key, False):
            self.policy.forget(key)

    def _vacate(self, key: int) -> None:
        self._protected.pop(key, None)
        slot = self._slot.pop(key)
        self._generation[slot] = next(self._generations)
        if self._reads[slot]:
            self._draining.add(slot)
        else:
            self._free.append(slot)
