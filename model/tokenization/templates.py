"""Special tokens around a text or a pair, as post-processors."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from model.config.encoder import EncoderConfig
from model.errors import CheckpointError
from model.tokenization.classes import input_names
from model.tokenization.files import TokenizerFiles
from model.tokenization.vocabulary import model_ids


def reading_segments(config: EncoderConfig, folder: Path) -> EncoderConfig:
    """Return the config, which reads segments if the folder's tokenizer returns them.

    An encoder whose texts have one of several segments reads them, whatever the tokenizer returns.
    """
    reads = config.text_segments > 1 or not config.type_vocab_size or hands_segments(folder)
    return config.model_copy(update={"reads_segments": bool(reads)})


def hands_segments(folder: Path) -> bool:
    """Return whether the tokenizer that transformers builds from a folder returns `token_type_ids`.

    `model_input_names` of `tokenizer_config.json` decides. Without it the class does: BERT's and
    DeBERTa-v2's return them; ALBERT's, DistilBERT's and a bare tokenizer.json do not.
    """
    files = TokenizerFiles.read(folder)
    if "model_input_names" not in files.settings:
        return "token_type_ids" in input_names(files)
    names = files.settings["model_input_names"]
    if not isinstance(names, list):
        raise CheckpointError(
            f"{folder}: model_input_names of tokenizer_config.json is {names!r}, not a list"
        )
    return "token_type_ids" in names


Numbered = tuple[str, int]
"""Token and its id."""


def numbered(tokenizer: Tokenizer, folder: Path, name: str, token: str | None) -> Numbered:
    """Return a named special token and its id."""
    if token is None:
        raise CheckpointError(
            f"{folder}: the tokenizer's {name} is null; name one in tokenizer_config.json"
        )
    index = tokenizer.token_to_id(token)
    if index is None:
        raise CheckpointError(f"{folder}: the tokenizer's vocabulary lacks {token}, its {name}")
    return token, index


def around(before: list[Numbered], after: list[Numbered]) -> TemplateProcessing:
    """Return the template of tokens before and after a text, and around a pair."""
    first, last = [token for token, _ in before], [token for token, _ in after]
    return TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", "$B", *last],
        special_tokens=[*before, *after],
    )


def check_template(folder: Path, tokenizer: Tokenizer, config: EncoderConfig, longest: int) -> None:
    """Raise an error for special tokens that the model cannot take around a text."""
    for kind, pair in (("a text", False), ("a pair of texts", True)):
        special = tokenizer.num_special_tokens_to_add(pair)
        if special >= longest:
            raise CheckpointError(
                f"{folder}: the tokenizer puts {special} special tokens around {kind}, of which "
                f"the model takes {longest} tokens at most: correct the post_processor of "
                "tokenizer.json"
            )
    encoding = tokenizer.encode("a")
    ids, segments = model_ids(tokenizer, encoding), encoding.type_ids
    if max(ids, default=0) >= config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer puts the token {max(ids)} around a text, where the encoder "
            f"has {config.vocab_size}: correct the post_processor of tokenizer.json"
        )
    if not config.knows_segment(max(segments, default=0)):
        raise CheckpointError(
            f"{folder}: the tokenizer gives a text the segment {max(segments)}, where the encoder "
            f"has {config.type_vocab_size} (type_vocab_size): correct the post_processor of "
            "tokenizer.json"
        )
