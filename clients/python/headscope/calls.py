"""Calls: vectors, attention, labels, ranks, sparse vectors, models and their verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload
from urllib.parse import urlencode

from numpy.typing import NDArray

from headscope import reading
from headscope.call import (
    FLOAT_BYTES,
    Call,
    CallFor,
    OnError,
    Raises,
    Returns,
    chained,
    only,
    ranked,
    worst,
)
from headscope.errors import Refused
from headscope.fields import (
    AttentionFields,
    EncodeFields,
    PredictFields,
    RerankFields,
    SparseFields,
    VerifyFields,
)
from headscope.inputs import Inputs, Item, Text, items_of, only_texts, targets_of, texts_of
from headscope.reply import Reply
from headscope.results import Encoding, Encodings, Label, Rank, SparseVector
from headscope.service_results import Info, ServedModel, Verification

BINARY = "application/vnd.safetensors"


@overload
def encode(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[EncodeFields]
) -> CallFor[Encodings]: ...
@overload
def encode(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[EncodeFields]
) -> CallFor[list[Encoding | Refused]]: ...
def encode(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[EncodeFields]
) -> CallFor[object]:
    """Return the contextual embeddings of texts: a vector per token, and one per text.

    Args:
        inputs: a text, a list of texts, or a list of pairs; or pictures: paths, bytes of files, or
            images of Pillow, possibly beside texts.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /encode`.

    Returns:
        One encoding per input, in order; `.pooled` of all of them is `[B, D]`. With
        `on_error="return"` it is a list of encodings and errors.

    """
    return _encoded(
        inputs, fields, on_error, lambda encodings: encodings, lambda encoding: encoding
    )


@overload
def embed(
    inputs: Inputs, *, on_error: Raises = "raise", **fields: Unpack[EncodeFields]
) -> CallFor[NDArray[Any]]: ...
@overload
def embed(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[EncodeFields]
) -> CallFor[list[NDArray[Any] | Refused]]: ...
def embed(
    inputs: Inputs, *, on_error: OnError = "raise", **fields: Unpack[EncodeFields]
) -> CallFor[object]:
    """Return the vectors of texts or pictures, `[B, D]`: `encode` without the tokens' vectors.

    They are float32, or of `vector_type`; binary vectors are bytes of eight features.
    With `on_error="return"` the result is a list of vectors `[D]` and errors.
    """
    all_fields: EncodeFields = {**fields, "outputs": ["pooled"]}
    return _encoded(
        inputs, all_fields, on_error, lambda many: many.pooled, lambda encoding: encoding.pooled
    )


def _encoded(
    inputs: Inputs,
    fields: EncodeFields,
    on_error: OnError,
    of_all: Callable[[Encodings], object],
    of_each: Callable[[Encoding], object],
) -> CallFor[object]:
    """Return a call of /encode.

    Args:
        inputs: inputs as for `encode`.
        fields: further fields of `POST /encode`.
        on_error: whether errors are among the results.
        of_all: function from all encodings to the result, if there are no errors among them.
        of_each: function from each encoding to its result, if errors are among the results.

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
        return of_all(Encodings(r for r in results if isinstance(r, Encoding)))

    return Call(
        "/encode",
        items_of(inputs),
        {**fields},
        reading.read_encodings,
        join,
        BINARY,
        weigh=weigh,
        on_error=on_error,
        whole=bool(fields.get("spans")),
    )


@overload
def attention(
    inputs: Inputs,
    *,
    on_error: Raises = "raise",
    **fields: Unpack[AttentionFields],
) -> CallFor[list[Reply]]: ...
@overload
def attention(
    inputs: Inputs, *, on_error: Returns, **fields: Unpack[AttentionFields]
) -> CallFor[list[Reply | Refused]]: ...
def attention(
    inputs: Inputs,
    *,
    on_error: OnError = "raise",
    **fields: Unpack[AttentionFields],
) -> CallFor[object]:
    """Return the attention weights of any head of any layer.

    Args:
        inputs: a text, a list of texts, or a list of pairs; or pictures, as for `encode`.
        on_error: "return" to get the error of a refused input in the input's place.
        fields: further fields of `POST /attention`.

    Returns:
        One reply per input, in order.

    Raises:
        TypeError: an input or a target is not a text.
        ValueError: the numbers of targets and inputs differ.

    """
    texts = items_of(inputs)
    targets = fields.pop("targets", None)

    def weigh(tokens: int, info: Info) -> int:
        layers, heads = fields.get("layers"), fields.get("heads")
        most = max(info.layers or 0, info.decoder_layers or 0)
        maps = most if layers is None else len(layers)
        most = max(info.heads or 0, info.decoder_heads or 0)
        maps *= most if heads is None else len(heads)
        maps *= len(fields.get("maps") or ("cross",))
        top_k = fields.get("top_k")
        rows, columns = (
            min(tokens if chosen is None else len(chosen), fields.get("max_size") or tokens)
            for chosen in (fields.get("queries"), fields.get("keys"))
        )
        row = columns if top_k is None else 2 * min(top_k, tokens)
        row = maps * row if "weights" in included else 0
        row += maps * columns if "norms" in included else 0
        others = {*included} - {"weights", "norms"}
        return FLOAT_BYTES * (rows * row + (tokens**2 if others else 0))

    included = fields.get("include", ("weights",))
    return Call(
        "/attention",
        texts,
        {**fields},
        reading.read_attention if targets is None else reading.read_aimed_attention,
        chained,
        BINARY,
        targets=() if targets is None else targets_of(targets, texts),
        weigh=weigh,
        on_error=on_error,
    )


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


def info(model: str | None = None) -> CallFor[Info]:
    """Return information about a model and its limits: the first model, or the named one."""
    query = "" if model is None else "?" + urlencode({"model": model})
    return Call(f"/info{query}", (), None, reading.read_info, only)


def models() -> CallFor[list[ServedModel]]:
    """Return the served models."""
    return Call("/v1/models", (), None, reading.read_models, only)


def verify(inputs: str | Sequence[Text], **fields: Unpack[VerifyFields]) -> CallFor[Verification]:
    """Compare the engine with PyTorch on some texts; return the worst differences.

    Raises:
        ValueError: there are no texts.

    """
    texts = texts_of(inputs)
    if not texts:
        raise ValueError("inputs is empty: nothing can be compared")
    return Call("/verify", texts, {**fields}, reading.read_verification, worst)
