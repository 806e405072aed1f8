"""Configuration: frozen, keyword-only pydantic models, TOML on disk, `--set a.b=value` on the command line."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from workbench.errors import BadInput, did_you_mean, shortened
from workbench.files import read_text

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Seed of random choices: what TOML can hold and generators accept."""
Count = Annotated[int, Field(ge=1)]
"""Number of things, one or more."""
Share = Annotated[float, Field(gt=0, le=1)]
"""Part of a whole, all of it at most."""
Figure = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A machine's figure in the unit that fits it, with room to multiply and to divide by it."""
_INTEGERS = range(-(2**63), 2**63)
"""Integers that TOML, tables and arrays can hold."""
_MOST_PROBLEMS = 3
"""Most problems of one configuration that its error names."""


def _word_or_integer(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise ValueError(f"a word or an integer is expected (got {value!r})")
    return value


WORD_OR_INTEGER = BeforeValidator(_word_or_integer)
"""For a literal of words and integers, which would take true and 1.0 for 1."""


class ConfigError(BadInput):
    """A configuration that can't be used; the message names the key, the value and what is expected."""


class Config(BaseModel):
    """Base of every configuration. Subclasses give each field a docstring with its unit.

    Numbers are finite, except in records of measurements, which allow others in their own `model_config`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the same settings give the same digest, whatever file they came from."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_toml(self) -> str:
        """The whole configuration as TOML; settings that are None are left out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def build(cls, values: Mapping[str, Any] | None = None, settings: Iterable[str] = ()) -> Self:
        """A configuration from a mapping, overridden by `a.b=value` settings. Raises ConfigError that names the problems.

        No value changes its type: true is no number, 2.0 no integer and "1" neither.
        """
        given = _over_defaults(cls, with_settings(values or {}, settings))
        try:
            # as JSON, a list may fill a tuple and a word an enumeration, although types are strict
            return cls.model_validate_json(json.dumps(given), strict=True)
        except ValidationError as error:
            problems = error.errors()
            more = [f"and {len(problems) - _MOST_PROBLEMS} more"] if len(problems) > _MOST_PROBLEMS else []
            raise ConfigError("; ".join([_explain(cls, each) for each in problems[:_MOST_PROBLEMS]] + more)) from None

    @classmethod
    def from_toml(cls, path: Path, settings: Iterable[str] = ()) -> Self:
        """A configuration from a TOML file, overridden by settings. Raises ConfigError, also when the file can't be read."""
        return cls.build(read_toml(path), settings)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError when the file can't be read or is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except BadInput as error:
        raise ConfigError(str(error)) from None
    except (ValueError, RecursionError) as error:
        # ValueError: also a number of more digits than Python reads
        raise ConfigError(f"{path} is not TOML: {shortened(str(error), 200)}") from None


def overlay(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values` overridden by `over`, table by table; None in `over` leaves a value unchanged.

    Raises ConfigError where `over` has a table and `values` something else.
    """
    merged = dict(values)
    for key, value in over.items():
        if isinstance(value, Mapping):
            if not isinstance(table := merged.get(key, {}), Mapping):
                raise ConfigError(f"{key}: a table is expected (got {shortened(repr(table))})")
            merged[key] = overlay(table, value)
        elif value is not None:
            merged[key] = value
    return merged


def with_settings(values: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of nested `values`, overridden by `a.b=value` settings. Raises ConfigError on a malformed setting."""
    merged: dict[str, Any] = _plain(values)
    for setting in settings:
        _apply(merged, setting)
    return merged


def _plain(value: Any, place: str = "") -> Any:
    """A copy of a value that JSON can hold. Raises ConfigError on any other: TOML has dates and times."""
    if isinstance(value, Mapping):
        return {key: _plain(each, f"{place}.{key}" if place else key) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, place) for each in value]
    if not isinstance(value, str | int | float | None):
        raise ConfigError(f"{place}: no setting is a date or a time; put text in quotes (got {shortened(str(value))})")
    if isinstance(value, int) and value not in _INTEGERS:
        raise ConfigError(f"{place}: an integer has at most 64 bits")
    return value


def _over_defaults(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Completes a table that is given in part from the field's own default, not from the defaults of its class."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel) and isinstance(values.get(name), dict):
            values[name] = overlay(field.default.model_dump(mode="json"), values[name])
    return values


def _apply(values: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"not a setting: {shortened(repr(setting))} (write key=value)")
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{key.strip()}: {parent} is not a table")
        values = child
    values[last] = _plain(_parse_value(text.strip()), key.strip())


def _parse_value(text: str) -> Any:
    """The one TOML value that a text is, or the text itself, so that a word needs no quotes."""
    try:
        # as an array's only element: no comment or further line is left out unread
        tables = tomllib.loads(f"value = [{text},]")
    except (ValueError, RecursionError):
        return text
    return tables["value"][0] if list(tables) == ["value"] and len(tables["value"]) == 1 else text


def _explain(model: type[BaseModel], problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "configuration"
    if problem["type"] == "value_error":
        # raised here, where the message names the value
        return f"{shortened(place)}: {problem['ctx']['error']}"
    if problem["type"] != "extra_forbidden":
        return f"{shortened(place)}: {problem['msg']} (got {shortened(repr(problem['input']))})"
    for part in problem["loc"][:-1]:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return f"{shortened(place)}: no such setting" + did_you_mean(str(problem["loc"][-1]), model.model_fields, lead="; ")
