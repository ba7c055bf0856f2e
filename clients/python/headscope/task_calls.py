"""Calls of models with a task head: labels, ranks, sparse vectors and their vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, overload
from urllib.parse import urlencode

from headscope import reading
from headscope.call import Call, CallFor, OnError, Raises, Returns
from headscope.errors import Refused
from headscope.fields import PredictFields, RerankFields, SparseFields
from headscope.inputs import Inputs, Item, items_of, only_texts
from headscope.joining import chained, only, ranked
from headscope.results import Label, Rank, SparseVector


@overload
def predict(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[PredictFields]
) -> CallFor[list[tuple[Label, ...]]]: ...
@overload
def predict(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[PredictFields]
) -> CallFor[list[tuple[Label, ...] | Refused]]: ...
def predict(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[PredictFields]
) -> CallFor[object]:
    """Return the labels of each text, pair or picture, the largest score first.

    Args:
        inputs: a text or picture, or a list of texts, pairs and pictures; see `encode`.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /predict`.

    Returns:
        The labels of each input. They are `Span`s if the model labels parts of a text.

    """
    items = items_of(inputs, mixed=True)
    batch: list[Item] = [[item] if isinstance(item, str) else item for item in items]
    return Call("/predict", batch, {**fields}, reading.read_labels, chained, on_error=on_error)


@overload
def rerank(
    query: str, texts: Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[RerankFields]
) -> CallFor[list[Rank]]: ...
@overload
def rerank(
    query: str, texts: Sequence[str], *, on_error: Returns, **fields: Unpack[RerankFields]
) -> CallFor[list[Rank | Refused]]: ...
def rerank(
    query: str, texts: Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[RerankFields]
) -> CallFor[object]:
    """Rank texts by a cross-encoder's or a late-interaction model's scores with a query.

    Args:
        query: the query.
        texts: the texts to rank.
        on_error: "return" to get the errors of refused texts after the ranks.
        fields: further fields of `POST /rerank`; `raw_scores` keeps the order of scores that
            saturate at 1.0, where the texts take several requests.

    Returns:
        All texts, the largest score first; `index` is the index in the list.

    """
    checked = only_texts(texts)
    body = {**fields, "query": query}
    read = reading.read_ranks
    return Call(
        "/rerank", checked, body, read, ranked, name="texts", shared=query, on_error=on_error
    )


@overload
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: Raises = "raise", **fields: Unpack[SparseFields]
) -> CallFor[list[SparseVector]]: ...
@overload
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: Returns, **fields: Unpack[SparseFields]
) -> CallFor[list[SparseVector | Refused]]: ...
def embed_sparse(
    inputs: str | Sequence[str], *, on_error: OnError = "raise", **fields: Unpack[SparseFields]
) -> CallFor[object]:
    """Return sparse vectors: weights of words of a vocabulary (SPLADE), or of a text (BM42).

    Args:
        inputs: a text, or a list of texts.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /embed_sparse`.

    """
    texts = only_texts([inputs] if isinstance(inputs, str) else inputs)
    return Call("/embed_sparse", texts, {**fields}, reading.read_sparse, chained, on_error=on_error)


def vocabulary(
    indices: Sequence[int] | None = None, model: str | None = None
) -> CallFor[list[str | None]]:
    """Return the tokens that indices of sparse vectors stand for; all tokens without indices."""
    pairs: list[tuple[str, int | str]] = [("index", int(index)) for index in indices or ()]
    pairs += [] if model is None else [("model", model)]
    path = "/vocabulary" + ("?" + urlencode(pairs) if pairs else "")
    return Call(path, (), None, reading.read_vocabulary, only)
