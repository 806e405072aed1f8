"""Configuration: frozen, keyword-only pydantic models, TOML on disk, `--set a.b=value` on the command line."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from workbench.errors import BadInput, did_you_mean
from workbench.files import read_text


class ConfigError(BadInput):
    """A configuration that can't be used; the message names the key, the value and what is expected."""


class Config(BaseModel):
    """Base of every configuration. Subclasses give each field a docstring with its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
        """A configuration from a mapping, overridden by `a.b=value` settings. Raises ConfigError that names every problem."""
        try:
            return cls.model_validate(_over_defaults(cls, with_settings(values or {}, settings)))
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(cls, problem) for problem in error.errors())) from None

    @classmethod
    def from_toml(cls, path: Path, settings: Iterable[str] = ()) -> Self:
        """A configuration from a TOML file, overridden by settings. Raises ConfigError, also when the file can't be read."""
        return cls.build(read_toml(path), settings)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError when the file can't be read or is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except BadInput as error:
        raise ConfigError(str(error)) from None


def overlay(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`values` overridden by `over`, table by table; None in `over` leaves a value unchanged."""
    merged = dict(values)
    for key, value in over.items():
        if isinstance(value, Mapping):
            merged[key] = overlay(merged.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def with_settings(values: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of nested `values`, overridden by `a.b=value` settings. Raises ConfigError on a malformed setting."""
    merged: dict[str, Any] = json.loads(json.dumps(values))
    for setting in settings:
        _apply(merged, setting)
    return merged


def _over_defaults(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Completes a table that is given in part from the field's own default, not from the defaults of its class."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel) and isinstance(values.get(name), dict):
            values[name] = overlay(field.default.model_dump(mode="json"), values[name])
    return values


def _apply(values: dict[str, Any], setting: str) -> None:
    key, separator, text = setting.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"not a setting: {setting!r} (write key=value, e.g. cache_bytes=64MiB)")
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{key.strip()}: {parent} is not a table")
        values = child
    values[last] = _parse_value(text.strip())


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(model: type[BaseModel], problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "configuration"
    if problem["type"] != "extra_forbidden":
        return f"{place}: {problem['msg']} (got {problem['input']!r})"
    for part in problem["loc"][:-1]:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return f"{place}: no such setting" + did_you_mean(str(problem["loc"][-1]), model.model_fields, lead="; ")
