"""Predictors of the experts that will be needed: one protocol for the live runtime and the twin, and the bundled predictors."""

from workbench.prediction.base import Predictor, PredictorSettings, RouteShape
from workbench.prediction.budgets import ClassBudgets
from workbench.prediction.choice import PREDICTORS, PredictorName, make_predictor
from workbench.prediction.future import FutureRoutes, PassFuture

__all__ = [
    "PREDICTORS",
    "ClassBudgets",
    "FutureRoutes",
    "PassFuture",
    "Predictor",
    "PredictorName",
    "PredictorSettings",
    "RouteShape",
    "make_predictor",
]
