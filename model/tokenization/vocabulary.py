"""Ids of tokens that a tokenizer produces but the model has no row for."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Encoding, Tokenizer, models
from tokenizers.models import Unigram

from model.tokenization.growth import check_growth

BEYOND = " pieces beyond the vocabulary"
"""Token that precedes, in id order, SentencePiece's pieces that a checkpoint's vocabulary lacks:
texts are segmented into these, but they are read as the unknown token. No text contains it."""

USUAL_UNKNOWN = {"<unk>", "[UNK]"}
"""Names of the unknown token in vocabularies whose tokenizer model has none, such as byte-level
ones."""


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids that the model has rows for."""
    first = tokenizer.token_to_id(BEYOND)
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return max(ids, default=-1) + 1 if first is None else first


def model_ids(tokenizer: Tokenizer, encoding: Encoding) -> list[int]:
    """Return a text's ids for the model: ids beyond the vocabulary become the unknown token's."""
    first = tokenizer.token_to_id(BEYOND)
    if first is None:
        return encoding.ids
    unknown = tokenizer.model.tokenize(" ")[0].id
    return [index if index < first else unknown for index in encoding.ids]


def unknown_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of the unknown token, which a Unigram model only names in its JSON."""
    added = tokenizer.get_added_tokens_decoder()
    special = {index: token.content for index, token in added.items() if token.special}
    usual = {index for index, content in special.items() if content in USUAL_UNKNOWN}
    model = tokenizer.model
    index: int | None = None
    if isinstance(model, Unigram):
        index = json.loads(tokenizer.to_str())["model"]["unk_id"]
    elif model.unk_token is not None:
        index = tokenizer.token_to_id(model.unk_token)
    return frozenset(usual if index is None else {*usual, index})


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, with its scores exactly as written.

    The library parses a quarter of the decimal numbers from -9 to -16, the range of most pieces, to
    an adjacent double. That would change the choice between segmentations of equal likelihood, such
    as "!" "!!" and "!!" "!". SentencePiece's four-byte scores are hardly affected; scores that the
    library has trained are.

    Raises:
        CheckpointError: its rules expand texts without a reasonable bound.

    """
    content = json.loads(path.read_bytes())
    check_growth(str(path), content)  # before the library normalises added tokens
    tokenizer = Tokenizer.from_file(str(path))
    if isinstance(tokenizer.model, models.Unigram):
        model = content["model"]
        pieces = [(piece, score) for piece, score in model["vocab"]]
        tokenizer.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return tokenizer
