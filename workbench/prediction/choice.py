"""The predictor that a configuration names."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from workbench.errors import BadInput, did_you_mean, shortened
from workbench.plugins import Plugin, is_plugin, load_class
from workbench.prediction.base import Predictor, PredictorSettings, RouteShape
from workbench.prediction.controls import NextLayer, NoisyOracle, Nothing, Oracle, PreviousToken
from workbench.prediction.future import FutureRoutes, TokenFuture
from workbench.schema import read_routes

PREDICTORS: dict[str, type[Predictor]] = {
    predictor.name: predictor for predictor in (Nothing, PreviousToken, NextLayer, Oracle, NoisyOracle)
}
"""Every bundled predictor by name."""


def _known(name: str) -> str:
    if not is_plugin(name) and name not in PREDICTORS:
        meant = did_you_mean(name, PREDICTORS, lead=", ")
        raise BadInput(f"no predictor {shortened(repr(name))}{meant}; there are {', '.join(PREDICTORS)}, or file.py:Class")
    return name


PredictorName = Annotated[Plugin, AfterValidator(_known)]
"""Name of a predictor, or `file.py:Class`. For a field of a `Config`."""


def make_predictor(name: str, shape: RouteShape, settings: PredictorSettings, future: FutureRoutes | None = None) -> Predictor:
    """The predictor `name`, or `file.py:Class`, for routes of a shape.

    `future`: the routes that an oracle knows; default: the trace at `settings.routes`. Raises BadInput on an unknown name, and
    for an oracle without usable routes.
    """
    kind: Any = load_class(name, Predictor) if is_plugin(name) else PREDICTORS[_known(name)]
    if issubclass(kind, Oracle):
        return kind(shape, settings, _recorded(kind.name, shape, settings) if future is None else future)
    made: Predictor = kind(shape, settings)
    return made


def _recorded(name: str, shape: RouteShape, settings: PredictorSettings) -> FutureRoutes:
    if not settings.routes:
        raise BadInput(
            f"predictor {name} needs recorded routes of the same prompts: record them with `workbench trace` or "
            "`workbench generate --set routes=true`, and name artifacts/routes.parquet in runtime.predictor_settings.routes"
        )
    frame, geometry = read_routes(Path(settings.routes))
    asked = {"num_layers": shape.num_layers, "num_experts": shape.num_experts, "top_k": shape.top_k}
    if geometry != asked:
        raise BadInput(f"{settings.routes}: routes of another model ({geometry}), this one has {asked}")
    try:
        return TokenFuture(frame, shape)
    except BadInput as error:
        raise BadInput(f"{settings.routes}: {error}") from None
