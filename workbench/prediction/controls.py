"""Control predictors: baselines that a real predictor must beat, and oracles that none can reach."""

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
    """Predicts for the layer ahead the experts that the layer used for the previous token.

    The previous token is the request's last committed one; for a layer of a later pass that this pass has already routed, it
    is the last token of this pass. Before the first token of a request nothing is predicted.
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
    """Predicts all experts of the next layer, whatever its router will choose: a control that wastes most of its reads."""

    name = "next_layer"
    priority = Priority.P2

    @property
    def lead_layers(self) -> int:
        """Always 1; the setting is ignored."""
        return 1

    def look(self, scope: Scope, layer: int, tensors: Mapping[str, Any]) -> Sequence[PredictedKey]:
        """See `Predictor.look`."""
        target, passes = self.ahead(layer)
        if passes:
            return []
        first_key, share = target * self.shape.num_experts, self.shape.top_k / self.shape.num_experts
        return [PredictedKey(first_key + expert, share) for expert in range(self.shape.num_experts)]


class Oracle(Predictor):
    """Predicts exactly the records that the future routes need."""

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
        """Probability that a predicted key is needed."""
        return 1.0

    def _predicted(self, row: KnownRow, layer: int) -> Sequence[int]:
        """Keys predicted for `layer` from the known row."""
        return row.keys


class NoisyOracle(Oracle):
    """An oracle that omits needed keys and adds wrong ones, at the rates of `recall` and `precision`; drawn before the run."""

    name = "noisy_oracle"

    def __init__(self, shape: RouteShape, settings: PredictorSettings, future: FutureRoutes) -> None:
        super().__init__(shape, settings, future)
        rng = np.random.default_rng(settings.seed)
        size = (future.num_rows * shape.num_layers, future.max_keys)
        self._kept = rng.random(size, np.float32) < settings.recall
        odds_wrong = min(1.0, settings.recall * (1 - settings.precision) / settings.precision)
        self._erred = rng.random(size, np.float32) < odds_wrong
        self._strangers = rng.integers(shape.num_experts, size=size)

    @property
    def _probability(self) -> float:
        return self.settings.precision

    def _predicted(self, row: KnownRow, layer: int) -> Sequence[int]:
        """The row's keys without the omitted ones; a wrong key stands right behind the key with which it was drawn."""
        event, first_key = row.number * self.shape.num_layers + layer, layer * self.shape.num_experts
        draws = zip(row.keys, self._kept[event].tolist(), self._erred[event].tolist(), self._strangers[event].tolist())
        predicted: list[int] = []
        for key, kept, erred, stranger in draws:
            if kept:
                predicted.append(key)
            if erred and first_key + stranger not in row.keys:
                predicted.append(first_key + stranger)
        return predicted
