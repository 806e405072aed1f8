"""Text and tokens: the tokenizer of a profile, prompts as token ids, ids that end a turn, and text while it is generated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from workbench.errors import BadInput
from workbench.files import read_json_object
from workbench.geometry import Geometry
from workbench.paths import bundled_model, store_folder
from workbench.stores.tokenizer_file import read_tokenizer

TextSink = Callable[[str], None]
"""Called with text as it is generated; with the last call of a turn all of its text has been passed."""
_EOS_FILES = ("config.json", "generation_config.json")


def model_folder(profile: str) -> Path:
    """Folder of a profile's tokenizer and configurations: the bundled model (profile mini), or the profile's store."""
    return bundled_model() if profile == "mini" else store_folder(profile)


def load_tokenizer(profile: str) -> Tokenizer:
    """The tokenizer of a profile's store, or of the bundled model (profile mini). Raises BadInput when there is none."""
    path = model_folder(profile) / "tokenizer.json"
    if not path.is_file():
        raise BadInput(f"{path.parent} has no tokenizer.json: the source checkpoint lacks one; copy it there")
    return read_tokenizer(path)


def encode(tokenizer: Tokenizer, text: str, vocab_size: int) -> list[int]:
    """Token ids of a prompt. Raises BadInput when there are none, or one that a model of `vocab_size` rows lacks."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if not ids:
        raise BadInput("the prompt has no tokens: give some text")
    if (largest := max(ids)) >= vocab_size:
        token = tokenizer.id_to_token(largest)
        raise BadInput(
            f"the tokenizer gives {token!r} the id {largest}, the model has {vocab_size} token ids: they don't belong together"
        )
    return ids


def stop_ids(profile: str, geometry: Geometry) -> frozenset[int]:
    """Every id that ends a turn: `eos_token_id`, a number or a list, of the model's and the generation configuration.

    The n-gram hash uses `geometry.eos_token_id` alone. Raises BadInput on an id that the model lacks.
    """
    found = {geometry.eos_token_id}
    for path in (model_folder(profile) / name for name in _EOS_FILES):
        if path.is_file():
            content = read_json_object(path)
            found |= _eos_ids(content.get("text_config", content).get("eos_token_id"), path, geometry.vocab_size)
    return frozenset(found)


def _eos_ids(value: Any, path: Path, vocab_size: int) -> set[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for each in ids:
        if type(each) is not int or not 0 <= each < vocab_size:
            raise BadInput(f"{path}: eos_token_id must name ids of 0 to {vocab_size - 1}, got {str(each)[:40]}")
    return set(ids)


class TurnText:
    """The text of one turn, token by token, in time that grows with its length alone."""

    def __init__(self, tokenizer: Tokenizer, show: TextSink | None) -> None:
        """`show`: gets text as soon as its characters are whole; None: the text is decoded at the end."""
        self._tokenizer, self._show = tokenizer, show
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._num_shown = 0

    def add(self, token_id: int) -> None:
        """Takes the next token."""
        self._ids.append(token_id)
        if self._show is not None and (text := self._stream.step(self._tokenizer, token_id)):
            self._num_shown += len(text)
            self._show(text)

    def end(self) -> str:
        """The whole text; shows the part of it that was held back, such as the start of a character that did not end."""
        whole: str = self._tokenizer.decode(self._ids)
        if self._show is not None and len(whole) > self._num_shown:
            self._show(whole[self._num_shown :])
        return whole
