"""A predictor of one's own: the experts of the layer ahead that a request's committed tokens used most."""

from collections import Counter

from workbench.prediction import Predictor
from workbench.scheduling import PredictedKey


class Popular(Predictor):
    """Predicts as many experts as a token uses."""

    name = "popular"

    def __init__(self, shape, settings):
        super().__init__(shape, settings)
        self.counts = {}

    def look(self, scope, layer, tensors):
        """A router has chosen `tensors["ids"] [T, k]` for `layer`: keys of the layer ahead, best first."""
        target, _ = self.ahead(layer)
        counts = self.counts.get((scope.request, target), Counter())
        total = max(1, counts.total())
        return [PredictedKey(key, count / total) for key, count in counts.most_common(self.shape.top_k)]

    def committed(self, scope, layer, keys):
        """Committed tokens used these record keys of `layer`, by token `[n, k]`."""
        counts = self.counts.setdefault((scope.request, layer), Counter())
        for token in keys:
            counts.update(int(key) for key in token)
