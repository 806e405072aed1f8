"""Predictors that predict nothing clever: what a real one must beat, and what no real one can reach."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.prediction.base import Predictor, PredictorSettings, RouteShape
from workbench.prediction.future import FutureRoutes, KnownRow
from workbench.scheduling.ticket import PredictedKey, Priority, Scope


class Nothing(Predictor):
    """Predicts nothing."""

    name = "nothing"

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """See `Predictor.look`."""
        return []


class PreviousToken(Predictor):
    """Predicts that the layer ahead needs what it needed for the token before.

    For a layer of this pass that is the last committed token of the request; for a layer of a later pass, the last token of
    this pass where the layer has been routed already. Before the first token of a request nothing is predicted.
    """

    name = "previous_token"

    def __init__(self, shape: RouteShape, settings: PredictorSettings) -> None:
        super().__init__(shape, settings)
        self._committed: dict[tuple[int, int], list[int]] = {}
        self._present: dict[tuple[int, int], list[int]] = {}

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """See `Predictor.look`."""
        self._present[scope.request, layer] = (tensors["ids"][-1] + layer * self.shape.num_experts).tolist()
        target, passes = self.ahead(layer)
        known = self._present if passes and target <= layer else self._committed
        return [PredictedKey(key) for key in known.get((scope.request, target), ())]

    def committed(self, scope: Scope, layer: int, keys: Sequence[Sequence[int]] | np.ndarray) -> None:
        """See `Predictor.committed`."""
        self._committed[scope.request, layer] = [int(key) for key in keys[-1]]


class NextLayer(Predictor):
    """Predicts the whole next layer, whatever the router will say: the rejected shortcut of AFN-019."""

    name = "next_layer"
    priority = Priority.P2

    @property
    def lead_layers(self) -> int:
        """One layer, whatever the settings say."""
        return 1

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """See `Predictor.look`."""
        target, passes = self.ahead(layer)
        if passes:
            return []
        first_key, share = target * self.shape.num_experts, self.shape.top_k / self.shape.num_experts
        return [PredictedKey(first_key + expert, share) for expert in range(self.shape.num_experts)]


class Oracle(Predictor):
    """Knows what will be needed."""

    name = "oracle"

    def __init__(self, shape: RouteShape, settings: PredictorSettings, future: FutureRoutes) -> None:
        super().__init__(shape, settings)
        self._future = future

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """See `Predictor.look`. Each key is named once, with the tokens that need it."""
        target, passes = self.ahead(layer)
        masks: dict[int, int] = {}
        for row in self._future.rows(scope, target, passes):
            for key in self._predicted(row, target):
                masks[key] = masks.get(key, 0) | 1 << row.token
        return [PredictedKey(key, self._probability, mask) for key, mask in masks.items()]

    @property
    def _probability(self) -> float:
        """That a predicted key is needed."""
        return 1.0

    def _predicted(self, row: KnownRow, layer: int) -> Sequence[int]:
        """Keys predicted for a layer of a row."""
        return row.keys


class NoisyOracle(Oracle):
    """Knows the future and forgets or errs at given rates, drawn from the seed before the run begins."""

    name = "noisy_oracle"

    def __init__(self, shape: RouteShape, settings: PredictorSettings, future: FutureRoutes) -> None:
        super().__init__(shape, settings, future)
        rng = np.random.default_rng(settings.seed)
        size = (future.num_rows * shape.num_layers, future.widest)
        self._kept = rng.random(size, np.float32) < settings.recall
        odds_wrong = min(1.0, settings.recall * (1 - settings.precision) / settings.precision)
        self._erred = rng.random(size, np.float32) < odds_wrong
        self._strangers = rng.integers(shape.num_experts, size=size)

    @property
    def _probability(self) -> float:
        return self.settings.precision

    def _predicted(self, row: KnownRow, layer: int) -> Sequence[int]:
        """A wrong record follows the place of the one whose prediction it accompanies."""
        event, first_key = row.number * self.shape.num_layers + layer, layer * self.shape.num_experts
        draws = zip(row.keys, self._kept[event].tolist(), self._erred[event].tolist(), self._strangers[event].tolist())
        predicted: list[int] = []
        for key, kept, erred, stranger in draws:
            if kept:
                predicted.append(key)
            if erred and first_key + stranger not in row.keys:
                predicted.append(first_key + stranger)
        return predicted
