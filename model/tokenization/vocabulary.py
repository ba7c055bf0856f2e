"""Tokens that a tokenizer cuts texts into and the model has no row for."""

from __future__ import annotations

from tokenizers import Encoding, Tokenizer

BEYOND = " pieces beyond the vocabulary"
"""A token after which all others are cut by, but read as the unknown one: SentencePiece's pieces
that a checkpoint's vocabulary lacks. No text has it."""


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id that the model has a row for."""
    first = tokenizer.token_to_id(BEYOND)
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    return max(ids, default=-1) + 1 if first is None else first


def model_ids(tokenizer: Tokenizer, encoding: Encoding) -> list[int]:
    """A text's ids as the model is given them: those beyond the vocabulary are the unknown one."""
    first = tokenizer.token_to_id(BEYOND)
    if first is None:
        return encoding.ids
    unknown = tokenizer.model.tokenize(" ")[0].id
    return [index if index < first else unknown for index in encoding.ids]
