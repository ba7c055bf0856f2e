"""Special tokens of text towers that the service adds or cuts texts at."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from model.artifact.modules import read_object
from model.artifact.sentence import SentenceConfig
from model.artifact.tower_files import tower_vectors
from model.errors import ConfigError
from model.tokenization.tokenizer import right_padding
from model.tokenization.vocabulary import vocabulary_size


def with_text_tokens(
    folder: Path, sentence: SentenceConfig, tokenizer: Tokenizer
) -> SentenceConfig:
    """Return the config with the ids of a text tower's end and padding tokens.

    transformers pools the first token whose id is `eos_token_id`, or the token of the highest id
    where `eos_token_id` is 2, as in the configs of CLIP's first release. In an artifact both are
    the id that the tokenizer ends a text with, which therefore must be that token.
    """
    tower = tower_vectors(folder, read_object(folder / "config.json"))
    if tower is None:
        return sentence
    ids: dict[str, int | None] = {}
    if (end := tower.end_token_id) is not None:
        last = tokenizer.encode("a").ids[-1:]
        wanted = vocabulary_size(tokenizer) - 1 if end == "highest" else end
        if last != [wanted]:
            raise ConfigError(
                f"{folder / 'config.json'}: eos_token_id pools the token {wanted}, and the "
                f"tokenizer ends a text with {last[0] if last else 'no token'}: set eos_token_id "
                "to the id of the tokenizer's end token"
            )
        ids["end_token_id"] = wanted
    if tower.padded:
        ids["pad_token_id"] = tokenizer.token_to_id(right_padding(folder))
    return sentence.model_copy(update=ids)


def fill_up(tokenizer: Tokenizer, sentence: SentenceConfig) -> None:
    """Make a tokenizer fill up texts as `pad_token_id` of the config says."""
    if sentence.pad_token_id is not None:
        token = tokenizer.id_to_token(sentence.pad_token_id)
        tokenizer.enable_padding(
            length=sentence.max_length, pad_id=sentence.pad_token_id, pad_token=token
        )
