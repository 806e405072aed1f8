"""What commands accept on their lines and in the environment: text in UTF-8, finite numbers in decimal digits."""

import math
import os
import re
from collections.abc import Sequence
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from cyclopts import Parameter, Token, convert
from cyclopts.validators import Number

from workbench.errors import BadInput, one_line, shortened

Seed = Annotated[int, Parameter(validator=Number(gte=0))]
"""A seed on the command line, as a setting's `Seed`."""

_VARIABLES = ("WORKBENCH_HOME", "WORKBENCH_RUNS", "WORKBENCH_STORE", "WORKBENCH_ARM", "WORKBENCH_TRACKING", "MLFLOW_TRACKING_URI")
_STORES = ("http", "https", "file", "sqlite", "postgresql", "mysql", "mssql", "databricks")
"""Schemes of MLflow's stores."""
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def number_as_written(kind: Any, tokens: Sequence[Token]) -> Any:
    """The value of an option. Raises ValueError on a number that would be rounded, is not finite or is not decimal."""
    kinds = _leaves(kind)
    for word in (token.value for token in tokens):
        if int in kinds and not _INTEGER.fullmatch(word):
            raise ValueError(f"{shortened(repr(word))} is no integer of up to 18 digits")
        if float in kinds and not (_NUMBER.fullmatch(word) and math.isfinite(float(word))):
            raise ValueError(f"{shortened(repr(word))} is no finite number")
    return convert(kind, tokens)


def _leaves(kind: Any) -> set[Any]:
    return {leaf for part in get_args(kind) for leaf in _leaves(part)} or {kind}


def check_words(words: Sequence[str]) -> None:
    """Raises BadInput when a word of the command line is not UTF-8 text."""
    for word in words:
        if not _is_text(word):
            raise BadInput(f"not UTF-8 text: {shortened(one_line(word))}")


def check_variables() -> None:
    """Raises BadInput when an environment variable that the workbench reads can't be used."""
    for name in _VARIABLES:
        if not _is_text(os.environ.get(name, "")):
            raise BadInput(f"{name} is not UTF-8 text: {shortened(one_line(os.environ[name]))}")
    if (tracking := os.environ.get("WORKBENCH_TRACKING", "")) not in ("", "on", "off"):
        raise BadInput(f"WORKBENCH_TRACKING is on or off, not {shortened(repr(tracking))}")
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    if store and not (store.isprintable() and _is_store(store)):
        raise BadInput(f"MLFLOW_TRACKING_URI is no address of a store, e.g. http://127.0.0.1:5000: {shortened(repr(store))}")
    if os.environ.get("WORKBENCH_ARM"):
        # imported for arms alone, since it costs time
        from workbench.schema.results import arm_tags

        arm_tags()


def _is_store(address: str) -> bool:
    """True for the address of a store of MLflow: a server, a database, a folder, or Databricks by its name alone."""
    scheme, colon, _ = address.partition(":")
    if not colon:
        return "/" in address or address == "databricks"
    if scheme not in ("http", "https"):
        return scheme.partition("+")[0] in _STORES
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_text(word: str) -> bool:
    """False when bytes that are not UTF-8 stand in a word, as Python marks them."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
