"""The bundled prompts: families of JSON lines with their provenance, checked against the checksums of their manifest."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from workbench.config import Config
from workbench.errors import BadInput, did_you_mean

MANIFEST_VERSION = 1


class Prompt(Config):
    """One prompt with its provenance."""

    id: str
    """Family and number, e.g. `python-03`."""
    family: str
    """python, rust, documentation ..."""
    split: Literal["train", "held_out"]
    """`train`: predictors may learn from the prompt's continuation."""
    source: str
    """Package or work that the text was taken from."""
    version: str
    """Version of that package."""
    licence: str
    """Licence of the text."""
    path: str
    """File within the source."""
    num_tokens: int
    """Tokens by the bundled model's tokenizer."""
    trained_on: bool | None
    """Whether the bundled model was trained on the text; null: unknown."""
    text: str
    """The prompt itself."""


_PROMPT = TypeAdapter(Prompt)


def load_prompts(folder: Path, family: str | None = None, split: str | None = None) -> tuple[Prompt, ...]:
    """Prompts of `folder` in the order of its manifest, optionally of one family or split only.

    Raises BadInput on a missing folder, another manifest version, a wrong checksum, a line that is no prompt, or a family
    or split that no prompt has.
    """
    prompts = tuple(prompt for name, digest in _files(folder).items() for prompt in _read(folder / name, digest))
    prompts = _only(prompts, "family", family, lambda prompt: prompt.family)
    return _only(prompts, "split", split, lambda prompt: prompt.split)


def _files(folder: Path) -> dict[str, str]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise BadInput(f"{path}: no readable manifest of prompts ({error})") from None
    if manifest.get("version") != MANIFEST_VERSION:
        raise BadInput(f"{path}: version {manifest.get('version')}, this workbench reads {MANIFEST_VERSION}")
    return manifest["files"]


def _read(path: Path, digest: str) -> list[Prompt]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: not readable ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise BadInput(f"{path}: its SHA-256 is not the manifest's; restore it or make the manifest anew")
    return [_parse(path, number, line) for number, line in enumerate(content.splitlines(), start=1)]


def _parse(path: Path, number: int, line: bytes) -> Prompt:
    try:
        return _PROMPT.validate_json(line)
    except ValidationError as error:
        raise BadInput(f"{path}, line {number}: not a prompt ({error.errors()[0]['msg']})") from None


def _only(prompts: tuple[Prompt, ...], what: str, wanted: str | None, value: Callable[[Prompt], Any]) -> tuple[Prompt, ...]:
    if wanted is None:
        return prompts
    names = list(dict.fromkeys(value(prompt) for prompt in prompts))
    if wanted not in names:
        hint = did_you_mean(wanted, names, otherwise=f"there are {', '.join(names)}")
        raise BadInput(f"no {what} {wanted!r} among the prompts; {hint}")
    return tuple(prompt for prompt in prompts if value(prompt) == wanted)
