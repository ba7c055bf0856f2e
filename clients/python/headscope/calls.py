"""Calls of the native routes as data: request, parsing and joining of replies.

`Client` and `AsyncClient` have a method for each call, with its name and parameters. More calls are
in `headscope.task_calls`, `service_calls`, `scoring`, `tokens`, `explanation` and `head_scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack, overload

from numpy.typing import NDArray

from headscope import reading
from headscope.call import FLOAT_BYTES, Call, CallFor, OnError, Raises, Returns
from headscope.errors import Refused
from headscope.fields import (
    AttentionFields,
    EncodeFields,
)
from headscope.inputs import Inputs, items_of, targets_of
from headscope.joining import chained
from headscope.reply import Reply
from headscope.results import Encoding, Encodings
from headscope.service_results import Info

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
