"""Equal quotas per layer: a control that ignores that layers need different numbers of slots."""

from collections import OrderedDict, defaultdict
from collections.abc import Container, Sequence

from workbench.policies.base import Policy, too_few


class LayerQuota(Policy):
    """Splits the cache evenly between layers and evicts the least recently used record of a layer.

    Quotas apply only once the cache is full: the victim comes from the layer that is furthest above its quota.
    """

    name = "layer-quota"

    def __init__(self, capacity: int, *, num_experts: int) -> None:
        """A key's layer is `key // num_experts`."""
        super().__init__(capacity)
        self._num_experts = num_experts
        self._by_recency: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)

    def start_event(self) -> None:
        """Does nothing: recency is an order of keys, without a clock."""

    def touch(self, keys: Sequence[int]) -> None:
        """See `Policy.touch`."""
        for key in keys:
            self._by_recency[key // self._num_experts].move_to_end(key)

    def admit(self, keys: Sequence[int]) -> None:
        """See `Policy.admit`."""
        for key in keys:
            self._by_recency[key // self._num_experts][key] = None

    def evict(self, count: int, protected: Container[int]) -> list[int]:
        """See `Policy.evict`."""
        return [self._evict_one(protected) for _ in range(count)]

    def _evict_one(self, protected: Container[int]) -> int:
        # equal quotas: the layer with the most records is furthest above its quota
        for _, keys in sorted(self._by_recency.items(), key=lambda item: (-len(item[1]), item[0])):
            for key in keys:
                if key not in protected:
                    del keys[key]
                    return key
        raise too_few(1, self.name)

    def forget(self, key: int) -> None:
        """See `Policy.forget`."""
        del self._by_recency[key // self._num_experts][key]
