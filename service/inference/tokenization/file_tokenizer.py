"""Tokenizer of one file of an artifact, with the model's ids and its truncating tokenizers.

Given ids with all special tokens at their beginning and end are left unchanged. Ids without any of
these tokens get them added. Ids with some of them are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
from tokenizers import Encoding, Tokenizer

from model.artifact.access import reading
from model.artifact.integrity import sha256_of
from model.artifact.sentence import PairTemplate
from model.tokenization.vocabulary import BEYOND, model_ids, read_tokenizer, unknown_ids
from service.errors import Unprocessable
from service.inference.tokenization.text import ArrayText, places_of, unknown_of
from service.inference.tokenization.truncation import Direction, encode

_tokenizers: WeakValueDictionary[str, FileTokenizer] = WeakValueDictionary()
"""Tokenizers in use, by the SHA-256 of their file."""


class FileTokenizer:
    """Tokenizer of an artifact's inputs, or of its targets."""

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json` or `target_tokenizer.json`."""
        with reading(path):
            self.whole: Tokenizer = read_tokenizer(path)
        beyond = self.whole.token_to_id(BEYOND)
        self.size: int = self.whole.get_vocab_size() if beyond is None else beyond
        """Number of ids that the model knows, which are 0 … size − 1."""
        self.unknown_ids = unknown_ids(self.whole)
        self.ids: Callable[[Encoding], list[int]] = (
            attrgetter("ids") if beyond is None else partial(model_ids, self.whole)
        )
        """Function that returns the model's input ids of a text."""
        added = self.whole.get_added_tokens_decoder().items()
        self._special = frozenset(index for index, token in added if token.special)
        opening, segments, closing = special_tokens(self.whole)
        self.opening = [token for token, _ in opening]
        self.closing = [token for token, _ in closing]
        """Ids of the special tokens before and after a text."""
        self._segments = [n for _, n in opening], segments, [n for _, n in closing]

    def decode(self, name: str, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        size = self.size
        for token in ids:
            if not 0 <= token < size:
                raise Unprocessable(f"{name} has the token id {token}: ids are 0 … {size - 1}")
        text: str = self.whole.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def check_encoded_again(self, name: str, ids: Sequence[int], text: str) -> None:
        """Raise if the tokens of a decoded text differ from its ids, with or without special ones.

        Raises:
            Unprocessable: the ids differ.

        """
        again = self.ids(encode(self.whole, text, special_tokens=False))
        if again not in (list(ids), [token for token in ids if token not in self._special]):
            raise Unprocessable(
                f"{name}: the token ids, decoded and encoded again, are others: send the text"
            )

    def complete(
        self, name: str, given: Sequence[int], most: int | None, direction: Direction
    ) -> ArrayText:
        """Return a client's ids as a tokenised text with all special tokens.

        Args:
            name: name of the ids in error messages.
            given: token ids.
            most: maximum number of tokens, special ones included, to which the ids are truncated;
                None for no truncation.
            direction: side that is truncated.

        """
        self.decode(name, given, skip_special_tokens=False)
        own = self._without_special(name, list(given))
        room = None if most is None else most - len(self.opening) - len(self.closing)
        truncated = room is not None and len(own) > room
        if room is not None and truncated:
            own = own[:room] if direction == "right" else own[len(own) - room :]
        opening, closing = self.opening, self.closing
        ids = np.array([*opening, *own, *closing], np.int64)
        special = bytes([*[1] * len(opening), *[0] * len(own), *[1] * len(closing)])
        before, segment, after = self._segments
        return ArrayText(
            tokens=[self.whole.id_to_token(token) or "" for token in ids.tolist()],
            input_ids=ids,
            segment_ids=np.array([*before, *[segment] * len(own), *after], np.int64),
            places=np.zeros((len(ids), 2), np.int32),
            truncated=truncated,
            prompt_tokens=0,
            special_tokens_mask=special,
            unknown=unknown_of(ids, self.unknown_ids, special),
        )

    def _without_special(self, name: str, given: list[int]) -> list[int]:
        """Return ids without the special tokens at their beginning and end."""
        opening, closing = self.opening, self.closing
        end = len(given) - len(closing)
        if end >= len(opening) and given[: len(opening)] == opening and given[end:] == closing:
            return given[len(opening) : end]
        if {*opening, *closing}.isdisjoint(given):
            return given
        raise Unprocessable(
            f"{name}: the token ids have some special tokens of the model and not all: begin them "
            f"with {opening} and end them with {closing}, or leave both out and they are added"
        )


def shared_tokenizer(path: Path) -> FileTokenizer:
    """Return the tokenizer of a file, which all files of the same content share while it is used.

    Reading a file holds Python's lock and so stops the event loop; versions of a model usually have
    the same tokenizer.
    """
    with reading(path):
        content = sha256_of(path)
    if shared := _tokenizers.get(content):
        return shared
    tokenizer = FileTokenizer(path)
    with reading(path):
        if sha256_of(path) == content:  # not changed while it was read
            _tokenizers[content] = tokenizer
    return tokenizer


def special_tokens(
    tokenizer: Tokenizer,
) -> tuple[list[tuple[int, int]], int, list[tuple[int, int]]]:
    """Return the ids and segments of what a tokenizer adds before a text and after it.

    Between them is the segment of the text itself.
    """
    encoding = tokenizer.encode("a")
    tokens = [*zip(encoding.ids, encoding.type_ids, strict=True)]
    own = [place for place, mask in enumerate(encoding.special_tokens_mask) if not mask]
    first, last = (own[0], own[-1] + 1) if own else (1, 1)
    return tokens[:first], tokens[own[0]][1] if own else 0, tokens[last:]


def in_template(
    tokenizer: FileTokenizer,
    template: PairTemplate,
    pair: tuple[str, str],
    skipped: tuple[int, int] = (0, 0),
) -> ArrayText:
    """Return a query and a document, tokenised in a chat template that adds all special tokens.

    Tokens of the template count as special tokens. A token that begins in the query or the document
    and ends in the template belongs to the former. Tokens up to the query's last have segment 0.

    Args:
        tokenizer: tokenizer of the model's texts.
        template: text around the pair.
        pair: query and document, or excerpts of them.
        skipped: number of characters before the excerpt of the query, and of the document.

    """
    encoding = encode(tokenizer.whole, template.filled(*pair), special_tokens=False)
    starts, ends = places_of(encoding.offsets).T
    places = np.zeros((len(starts), 2), np.int32)
    special = np.ones(len(starts), bool)
    begin = len(template.before)
    for text, before in zip(pair, skipped, strict=True):
        spans = np.clip(np.stack([starts, ends], axis=1) - begin, 0, len(text))
        own = spans[:, 0] < spans[:, 1]
        places[own] = spans[own] + before
        special &= ~own
        begin += len(text) + len(template.between)
    ids = np.array(tokenizer.ids(encoding), np.int64)
    return ArrayText(
        tokens=encoding.tokens,
        input_ids=ids,
        segment_ids=(starts >= len(template.before) + len(pair[0])).astype(np.int64),
        places=places,
        truncated=False,
        prompt_tokens=0,
        special_tokens_mask=special.tobytes(),
        unknown=unknown_of(ids, tokenizer.unknown_ids, special.tolist()),
    )
