"""Every call of a client as data: what is asked, how a reply is read, how several are joined.

`Client` and `AsyncClient` have a method of the name and parameters of each function here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from headscope import reading
from headscope.alignment import Alignment, read_alignments
from headscope.call import FLOAT_BYTES, Call
from headscope.fields import (
    AlignFields,
    AttentionFields,
    EncodeFields,
    PredictFields,
    RerankFields,
    SparseFields,
    VerifyFields,
)
from headscope.inputs import Text, only_pairs, only_texts, targets_of, texts_of
from headscope.joining import chained, of_one_model, only, ranked, worst
from headscope.reply import Reply
from headscope.results import (
    Encodings,
    Info,
    Label,
    Rank,
    ServedModel,
    SparseVector,
    Verification,
)

T = TypeVar("T")
BINARY = "application/vnd.safetensors"
WORD_BYTES = 200
"""About what a word and its alignments have in JSON."""
SCORE_BYTES = 15


def encode(inputs: str | Sequence[Text], **fields: Unpack[EncodeFields]) -> Call[Any, Encodings]:
    """Contextual embeddings: a vector a token, and one of the text.

    Args:
        inputs: a text, a list of texts, or a list of pairs.
        fields: of `POST /encode`.

    Returns:
        An encoding a text, in their order; `.pooled` of them all is `[B, D]`.

    """
    return _encoded(inputs, fields, lambda found: found)


def embed(
    inputs: str | Sequence[Text], **fields: Unpack[EncodeFields]
) -> Call[Any, NDArray[np.float32]]:
    """The vectors of texts, `[B, D]`: `encode` without those of their tokens."""
    return _encoded(inputs, {**fields, "outputs": ["pooled"]}, lambda found: found.pooled)


def _encoded(
    inputs: str | Sequence[Text], fields: EncodeFields, last: Callable[[Encodings], T]
) -> Call[Any, T]:
    """A call of /encode, whose result is what `last` makes of the encodings."""

    def weigh(tokens: int, info: Info) -> int:
        rows = tokens if "tokens" in fields.get("outputs", ("tokens",)) else 1
        return FLOAT_BYTES * rows * (info.hidden_size or 0)

    return Call(
        "/encode",
        texts_of(inputs),
        {**fields},
        reading.read_encodings,
        lambda parts: last(Encodings(of_one_model(chained(parts)))),
        BINARY,
        weigh=weigh,
    )


def attention(
    inputs: str | Sequence[Text], **fields: Unpack[AttentionFields]
) -> Call[Any, list[Reply]]:
    """The attention weights of any head of any layer.

    Args:
        inputs: a text, a list of texts, or a list of pairs.
        fields: of `POST /attention`.

    Returns:
        A reply a text, in their order.

    Raises:
        TypeError: an input or a target is no text.
        ValueError: there is another number of targets than of inputs.

    """
    every = texts_of(inputs)
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
            min(tokens if asked is None else len(asked), fields.get("max_size") or tokens)
            for asked in (fields.get("queries"), fields.get("keys"))
        )
        row = columns if top_k is None else 2 * min(top_k, tokens)
        row = maps * row if "weights" in included else 0
        row += maps * columns if "norms" in included else 0
        others = {*included} - {"weights", "norms"}
        return FLOAT_BYTES * (rows * row + (tokens**2 if others else 0))

    included = fields.get("include", ("weights",))
    return Call(
        "/attention",
        every,
        {**fields},
        reading.read_attention if targets is None else reading.read_aimed_attention,
        lambda parts: of_one_model(chained(parts)),
        BINARY,
        targets=() if targets is None else targets_of(targets, every),
        weigh=weigh,
    )


def align(
    inputs: Sequence[Sequence[str]], **fields: Unpack[AlignFields]
) -> Call[Any, list[Alignment]]:
    """Which words of a target translate which words of its source.

    Args:
        inputs: a list of pairs, each a source and its target.
        fields: of `POST /align`.

    Returns:
        An alignment a pair, in their order.

    """

    def weigh(tokens: int, info: Info) -> int:
        vectors = FLOAT_BYTES * tokens * (info.hidden_size or 0)
        scores = SCORE_BYTES * (tokens // 2) ** 2 if fields.get("matrix") else 0
        return vectors + WORD_BYTES * tokens + scores

    return Call(
        "/align",
        only_pairs(inputs),
        {**fields},
        read_alignments,
        lambda parts: of_one_model(chained(parts)),
        weigh=weigh,
    )


def predict(
    inputs: str | Sequence[Text], **fields: Unpack[PredictFields]
) -> Call[Any, list[tuple[Label, ...]]]:
    """The labels of each text or pair, the largest score first; of a classifier of tokens spans.

    Args:
        inputs: a text, or a list of texts and pairs.
        fields: of `POST /predict`.

    Returns:
        For each text its labels, which are `Span` where the model labels parts of a text.

    """
    every = texts_of(inputs, mixed=True)
    batch = [[one] if isinstance(one, str) else one for one in every]
    return Call("/predict", batch, {**fields}, reading.read_labels, chained)


def rerank(
    query: str, texts: Sequence[str], **fields: Unpack[RerankFields]
) -> Call[Any, list[Rank]]:
    """Texts by a cross-encoder's or a late-interaction model's score of each with a query.

    Args:
        query: what is looked for.
        texts: what is ranked.
        fields: of `POST /rerank`.

    Returns:
        All texts, the largest score first; `index` is that of the list.

    """
    every = only_texts(texts)
    body = {**fields, "query": query}
    read = reading.read_ranks
    return Call("/rerank", every, body, read, ranked, name="texts", shared=query)


def embed_sparse(
    inputs: str | Sequence[str], **fields: Unpack[SparseFields]
) -> Call[Any, list[SparseVector]]:
    """A weight for some words of a vocabulary (SPLADE), or of a text (BM42).

    Args:
        inputs: a text, or a list of texts.
        fields: of `POST /embed_sparse`.

    """
    every = only_texts([inputs] if isinstance(inputs, str) else inputs)
    return Call("/embed_sparse", every, {**fields}, reading.read_sparse, chained)


def verify(inputs: str | Sequence[Text], **fields: Unpack[VerifyFields]) -> Call[Any, Verification]:
    """Texts through PyTorch and through the engine; of several requests the worst difference.

    Raises:
        ValueError: there is no text.

    """
    every = texts_of(inputs)
    if not every:
        raise ValueError("inputs is empty: nothing can be compared")
    return Call("/verify", every, {**fields}, reading.read_verification, worst)


def info(model: str | None = None) -> Call[Any, Info]:
    """What is served, by what, and its limits: of the first model, or of the one that is named."""
    query = "" if model is None else "?" + urlencode({"model": model})
    return Call(f"/info{query}", (), None, reading.read_info, only)


def models() -> Call[Any, list[ServedModel]]:
    """The models that are served."""
    return Call("/v1/models", (), None, reading.read_models, only)


def vocabulary(
    indices: Sequence[int] | None = None, model: str | None = None
) -> Call[Any, list[str | None]]:
    """The tokens that indices of sparse vectors stand for; without indices all."""
    pairs: list[tuple[str, int | str]] = [("index", int(index)) for index in indices or ()]
    pairs += [] if model is None else [("model", model)]
    path = "/vocabulary" + ("?" + urlencode(pairs) if pairs else "")
    return Call(path, (), None, reading.read_vocabulary, only)
