"""Replays events through a cache policy and counts misses: instant reads, no clock.

An event is the set of records that must be resident together: a token's top-k of one layer, or the union of a block of tokens.
An event's hits are touched, then its misses are admitted; none of its own records is evicted for it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import numpy as np

from workbench.errors import BadInput
from workbench.policies import Belady, LayerQuota, Policy, make

Events = Sequence[Sequence[int]]
"""Keys of each event, in rank order; also an integer array `[events, top_k]`."""

PolicyFactory = Callable[[int], Policy]
"""Makes a policy for a number of slots."""


def miss_counts(events: Events, capacity: int, policy: str | PolicyFactory, *, pinned: Collection[int] = ()) -> np.ndarray:
    """Misses of each event, int64, in a cache of `capacity` records that starts with `pinned` and nothing else.

    `policy` is a name of `POLICIES` or makes a policy for a number of slots. Pinned records are never evicted, and the policy
    gets only the remaining slots. Raises BadInput when an event and the pinned records do not fit together.
    """
    lists = events.tolist() if isinstance(events, np.ndarray) else events
    _check_fit(lists, capacity, len(pinned))
    slots = capacity - len(pinned)
    live = _build(policy, slots, lists)
    pinned, resident, misses = frozenset(pinned), set(pinned), np.zeros(len(lists), np.int64)
    for index, keys in enumerate(lists):
        event = dict.fromkeys(keys)
        missing = [key for key in event if key not in resident]
        live.start_event()
        live.touch([key for key in event if key in resident and key not in pinned])
        if missing:
            misses[index] = len(missing)
            live.admit(missing)
            resident.update(missing)
            resident.difference_update(live.evict(max(0, len(resident) - capacity), event))
    return misses


def miss_counts_per_access(accesses: Iterable[int], capacity: int, policy: str | PolicyFactory) -> np.ndarray:
    """Misses of each access (0 or 1) when every access is an event of its own, as general cache simulators replay.

    For comparison with such simulators only: on routes, a record that an event still needs could be evicted within the event.
    """
    flat = accesses.tolist() if isinstance(accesses, np.ndarray) else accesses
    return miss_counts([(key,) for key in flat], capacity, policy)


def of_layers(policy: str, *, num_experts: int) -> str | PolicyFactory:
    """The policy `policy` for `miss_counts`: a factory with the geometry for layer-quota, else the name itself."""
    if policy == LayerQuota.name:
        return partial(LayerQuota, num_experts=num_experts)
    return policy


def _check_fit(events: Events, capacity: int, num_pinned: int) -> None:
    largest = max((len(set(event)) for event in events), default=0)
    if largest + num_pinned > capacity:
        pinned = f" beside {num_pinned} pinned records" if num_pinned else ""
        raise BadInput(f"an event needs {largest} records at once{pinned}, the cache holds {capacity}: give it more slots")


def _build(policy: str | PolicyFactory, slots: int, events: Events) -> Policy:
    if not isinstance(policy, str):
        return policy(slots)
    if policy == Belady.name:
        return make(policy, capacity=slots, events=events)
    return make(policy, capacity=slots)
