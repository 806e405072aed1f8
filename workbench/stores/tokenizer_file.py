"""`tokenizer.json` of a checkpoint or store: read, and compared with the rows that the model has for token ids."""

from pathlib import Path

from tokenizers import Tokenizer

from workbench.errors import BadInput


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file. Raises BadInput when the file is none."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        # the package raises plain Exception
        raise BadInput(f"{path} is no tokenizer: {str(error)[:200]}") from None


def check_token_ids(path: Path, vocab_size: int) -> None:
    """Raises BadInput when a token of the tokenizer, an added one included, has an id beyond the model's `vocab_size` rows."""
    vocabulary = read_tokenizer(path).get_vocab(with_added_tokens=True)
    token, largest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if largest >= vocab_size:
        raise BadInput(
            f"{path} gives {token!r} the id {largest}, the model has {vocab_size} token ids: they don't belong together"
        )
