"""Calls and their results: vectors, labels, sparse vectors, tokens, models.

Notation: S tokens of a text, T of all texts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, overload
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from headscope.display import HeatMap, frame
from headscope.errors import Refused
from headscope.exchange import (
    BINARY,
    FLOAT_BYTES,
    JSON_TOKEN_BYTES,
    Call,
    OnError,
    Raises,
    Returns,
    chained,
    only,
)
from headscope.fields import (
    EncodeFields,
    PredictFields,
    SparseFields,
    TokenizeFields,
    VerifyFields,
)
from headscope.inputs import Inputs, Item, Text, items_of, list_of_texts
from headscope.reading import Tensors, build, each, texts_of
from headscope.results import (
    Difference,
    Encoding,
    Encodings,
    Info,
    Label,
    ServedModel,
    Span,
    SparseVector,
    TextTokens,
    Verification,
)
from headscope.words import SPECIAL, Offset

if TYPE_CHECKING:
    from pandas import DataFrame


@overload
def encode(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[EncodeFields]
) -> Call[Encodings]: ...
@overload
def encode(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[EncodeFields]
) -> Call[list[Encoding | Refused]]: ...
def encode(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[EncodeFields]
) -> Call[object]:
    """Return the contextual embeddings of texts: a vector per token, and one per text.

    Inputs are a text, a list of texts, or a list of pairs; or pictures: paths, bytes of files, or
    images of Pillow, possibly beside texts. The result has one encoding per input, in order;
    `.pooled` of all of them is `[B, D]`.
    """
    return _encoded(inputs, fields, on_error, Encodings, lambda encoding: encoding)


@overload
def embed(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[EncodeFields]
) -> Call[NDArray[Any]]: ...
@overload
def embed(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[EncodeFields]
) -> Call[list[NDArray[Any] | Refused]]: ...
def embed(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[EncodeFields]
) -> Call[object]:
    """Return the vectors of texts or pictures, `[B, D]`: `encode` without the tokens' vectors.

    They are float32, or of `vector_type`; binary vectors are bytes of eight features.
    With `on_error="return"` the result is a list of vectors `[D]` and errors.
    """
    return _encoded(
        inputs,
        {**fields, "outputs": ["pooled"]},
        on_error,
        lambda encodings: Encodings(encodings).pooled,
        lambda encoding: encoding.pooled,
    )


def _encoded(
    inputs: Inputs,
    fields: EncodeFields,
    on_error: OnError,
    of_all: Callable[[Iterable[Encoding]], object],
    of_each: Callable[[Encoding], object],
) -> Call[object]:
    """Return a call of /encode.

    Its result is that of `of_all`, or the results of `of_each` among errors.
    """

    def weigh(tokens: int, info: Info) -> int:
        parts, chunk = fields.get("spans"), fields.get("chunk")
        outputs = fields.get("outputs", () if parts or chunk else ("tokens",))
        rows = tokens * len({"tokens", "multivector", "sparse"}.intersection(outputs)) or 1
        if parts:
            rows += max(map(len, parts))
        elif chunk:  # overlaps are at most half of the chunks
            rows += 2 * tokens // chunk.get("size", 256) + 1
        return FLOAT_BYTES * rows * (info.hidden_size or 0) * len(fields.get("layers") or (-1,))

    def join(parts: Sequence[Sequence[Encoding | Refused]]) -> object:
        results = chained(parts)
        if on_error == "return":
            return [r if isinstance(r, Refused) else of_each(r) for r in results]
        return of_all(r for r in results if isinstance(r, Encoding))

    return Call(
        "/encode",
        items_of(inputs),
        {**fields},
        read_encodings,
        join,
        BINARY,
        weigh=weigh,
        on_error=on_error,
        whole=bool(fields.get("spans")),
    )


def read_encodings(
    reply: tuple[Tensors, Mapping[str, str]], items: Sequence[Item]
) -> list[Encoding]:
    """Read the binary reply of /encode."""
    layers = json.loads(reply[1].get("layers", "[]"))
    encodings = []
    for text in texts_of(reply, items):
        spans, windows = (text["tensors"].pop(name, None) for name in ("spans", "windows"))
        text["spans"] = None if spans is None else [(start, end) for start, end in spans.tolist()]
        text["windows"] = None if windows is None else int(windows)
        encodings.append(Encoding(**text, layers=layers))
    return encodings


@overload
def predict(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[PredictFields]
) -> Call[list[tuple[Label, ...]]]: ...
@overload
def predict(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[PredictFields]
) -> Call[list[tuple[Label, ...] | Refused]]: ...
def predict(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[PredictFields]
) -> Call[object]:
    """Return the labels of each text, pair or picture, the largest score first.

    They are `Span`s if the model labels parts of a text. A list may have texts, pairs and pictures.
    """
    items = [[item] if isinstance(item, str) else item for item in items_of(inputs, mixed=True)]
    return Call("/predict", items, {**fields}, read_labels, chained, on_error=on_error)


def read_labels(results: Any, inputs: Sequence[Item]) -> list[tuple[Label, ...]]:
    """Read the labels of each input, or its labelled spans."""
    return [build(tuple[Span | Label, ...], labels) for labels, _ in each(results, inputs)]


@overload
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[SparseFields]
) -> Call[list[SparseVector]]: ...
@overload
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: Returns, **fields: Unpack[SparseFields]
) -> Call[list[SparseVector | Refused]]: ...
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[SparseFields]
) -> Call[object]:
    """Return sparse vectors: weights of words of a vocabulary (SPLADE), or of a text (BM42)."""
    texts = list_of_texts([inputs] if isinstance(inputs, str) else inputs)
    return Call("/embed_sparse", texts, {**fields}, read_sparse, chained, on_error=on_error)


def read_sparse(results: Any, texts: Sequence[str]) -> list[SparseVector]:
    """Read one sparse vector per text."""
    return [
        SparseVector(
            np.array([weight["index"] for weight in weights], np.int64),
            np.array([weight["value"] for weight in weights], np.float32),
        )
        for weights, _ in each(results, texts)
    ]


def vocabulary(
    indices: Sequence[int] | None = None, model: str | None = None
) -> Call[list[str | None]]:
    """Return the tokens that indices of sparse vectors stand for; all tokens without indices."""
    pairs: list[tuple[str, int | str]] = [("index", int(index)) for index in indices or ()]
    pairs += [] if model is None else [("model", model)]
    path = "/vocabulary" + ("?" + urlencode(pairs) if pairs else "")
    return Call(path, (), None, lambda reply, _: build(list[str | None], reply), only)


def models() -> Call[list[ServedModel]]:
    """Return the served models."""
    return Call(
        "/v1/models", (), None, lambda reply, _: build(list[ServedModel], reply["data"]), only
    )


def verify(inputs: str | Sequence[Text], **fields: Unpack[VerifyFields]) -> Call[Verification]:
    """Compare the engine with PyTorch on at least one text; return the worst differences."""
    texts = items_of(inputs, pictures=False)
    if not texts:
        raise ValueError("inputs is empty: nothing can be compared")
    return Call("/verify", texts, {**fields}, read_verification, worst)


def read_verification(reply: Any, texts: Sequence[Item]) -> Verification:
    """Read the differences of the engine from PyTorch for some texts."""
    if reply["inputs"] != len(texts):
        raise ValueError(f"{reply['inputs']} texts of {len(texts)} were compared")
    verification: Verification = build(Verification, reply)
    return verification


def worst(parts: Sequence[Verification]) -> Verification:
    """Combine verifications of parts of the texts to one of all texts."""
    tasks = [part.task for part in parts if part.task]
    return replace(
        parts[0],
        passed=all(part.passed for part in parts),
        inputs=sum(part.inputs for part in parts),
        hidden=tuple(map(_farthest, zip(*(part.hidden for part in parts), strict=True))),
        attention=tuple(map(_farthest, zip(*(part.attention for part in parts), strict=True))),
        pooled=_farthest([part.pooled for part in parts]),
        task=_farthest(tasks) if tasks else None,
    )


def _farthest(differences: Sequence[Difference]) -> Difference:
    """Combine differences of one tensor to the worst."""
    return replace(
        differences[0],
        max_abs_diff=max(d.max_abs_diff for d in differences),
        min_cosine=min(d.min_cosine for d in differences),
        passed=all(d.passed for d in differences),
    )


@dataclass(frozen=True, repr=False)
class Tokens(TextTokens):
    """Tokens of one text, of any length."""

    special: list[bool]
    """Whether the tokenizer added the token around the text."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def to_pandas(self) -> DataFrame:
        """Return a table of the tokens, with their positions in the text."""
        columns = (self.tokens, self.token_ids, self.offsets, self.special)
        rows = [
            (token, id_, *offset, special)
            for token, id_, offset, special in zip(*columns, strict=True)
        ]
        return frame(rows, columns=("token", "id", "start", "end", "special"))

    def _repr_html_(self) -> str:
        return HeatMap(f"{len(self)} tokens", tuple(self.tokens), None).html()


@overload
def tokenize(
    inputs: str | Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[TokenizeFields]
) -> Call[list[Tokens]]: ...
@overload
def tokenize(
    inputs: str | Sequence[str], *, on_error: Returns, **fields: Unpack[TokenizeFields]
) -> Call[list[Tokens | Refused]]: ...
def tokenize(
    inputs: str | Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[TokenizeFields]
) -> Call[object]:
    """Return the tokens of texts, which may exceed the model's maximum length."""
    texts = list_of_texts([inputs] if isinstance(inputs, str) else inputs)
    return Call(
        "/tokenize",
        texts,
        {**fields},
        lambda results, texts: [_tokens(text, pieces) for pieces, text in each(results, texts)],
        chained,
        weigh=lambda tokens, _: JSON_TOKEN_BYTES * tokens,
        on_error=on_error,
    )


def _tokens(text: str, pieces: Sequence[Mapping[str, Any]]) -> Tokens:
    bytes_before = itertools.accumulate((len(character.encode()) for character in text), initial=0)
    place = {size: index for index, size in enumerate(bytes_before)}
    prompt = _prompt_bytes(text, pieces)

    def offset(piece: Mapping[str, Any]) -> Offset:
        if piece["special"] or piece["stop"] <= prompt:
            return SPECIAL
        return place[max(piece["start"] - prompt, 0)], place[piece["stop"] - prompt]

    return Tokens(
        text,
        [piece["text"] for piece in pieces],
        [piece["id"] for piece in pieces],
        [offset(piece) for piece in pieces],
        [piece["special"] for piece in pieces],
    )


def _prompt_bytes(text: str, pieces: Sequence[Mapping[str, Any]]) -> int:
    """Return the size in UTF-8 of the prompt before a text, which the reply does not contain.

    It is the smallest size for which every token after the prompt matches the text.
    """
    whole = text.encode()
    places = [
        (piece["start"], piece["stop"], piece["text"].encode())
        for piece in pieces
        if not piece["special"]
    ]

    def fits(size: int) -> bool:
        behind = (place for place in places if place[0] >= size)
        return all(whole[start - size : stop - size] == own for start, stop, own in behind)

    return next(filter(fits, range(max((stop for _, stop, _ in places), default=0) + 1)))
