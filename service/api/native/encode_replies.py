"""Replies of `POST /encode`, as JSON, base64 in JSON, or safetensors.

Notation: B texts, T tokens of all texts, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.native.span_fields import span_tensors
from service.api.native.texts import Header, metadata, text_fields, text_tensors, usage
from service.api.native.vector_outputs import vector_fields, vector_tensors
from service.api.wire.json_pieces import PIECE, as_json, base64_pieces, object_pieces
from service.api.wire.media import Part, Unwritten
from service.api.wire.safetensors import safetensors_parts
from service.engines.contract import Floats
from service.inference.encoding import TextEncoding
from service.inference.tokenization.tokenized import TokenizedText


def encode_json(
    header: Header,
    texts: Sequence[TokenizedText],
    encodings: Sequence[TextEncoding],
    *,
    as_base64: bool,
) -> Part | Unwritten:
    """Return the JSON reply, written if it is small; vectors that were not requested are absent."""
    results = (
        text_fields(text) | _vectors(encoding, as_base64=as_base64)
        for text, encoding in zip(texts, encodings, strict=True)
    )
    numbers = sum(array.size for encoding in encodings for array in encoding.arrays.values())
    if numbers <= PIECE and not as_base64:
        return as_json({**header.names, "results": [*results], "usage": usage(texts)})
    return _json_pieces(header, results, texts)


def _vectors(encoding: TextEncoding, *, as_base64: bool) -> dict[str, object]:
    """Return the fields of a text's vectors, spans and windows."""
    own: dict[str, object] = {} if encoding.places is None else {"spans": encoding.places}
    if encoding.windows:
        own["windows"] = encoding.windows
    own |= vector_fields(encoding, as_base64=as_base64)
    if as_base64:
        return own | {name: base64_pieces(array) for name, array in encoding.arrays.items()}
    return own | {name: np.ascontiguousarray(array) for name, array in encoding.arrays.items()}


def _json_pieces(
    header: Header, results: Iterable[dict[str, object]], texts: Sequence[TokenizedText]
) -> Unwritten:
    yield orjson.dumps({**header.names, "results": []}).removesuffix(b"]}")
    for number, fields in enumerate(results):
        if number:
            yield b","
        yield from object_pieces(fields)
    yield b'],"usage":' + orjson.dumps(usage(texts)) + b"}"


def encode_safetensors(
    header: Header,
    texts: Sequence[TokenizedText],
    encodings: Sequence[TextEncoding],
    ranges: Floats | None = None,
) -> list[Part]:
    """Serialise the binary reply: `embeddings` `[T, H]`, `pooled` `[B, H]`, and spans.

    With several hidden states, each tensor of vectors has a leading axis of layers.

    Args:
        header: fields of the reply beside its results.
        texts: texts of the request.
        encodings: vectors of each text.
        ranges: lowest and highest value of each feature, `[2, D]`, of int8 and uint8 vectors.

    """
    tensors: dict[str, NDArray[np.generic]] = {}
    embeddings = [encoding.tokens for encoding in encodings if encoding.tokens is not None]
    arrays = [encoding.arrays for encoding in encodings]
    pooled = [of_text["pooled"] for of_text in arrays if "pooled" in of_text]
    if embeddings:
        tensors["embeddings"] = np.concatenate(embeddings, axis=-2)
    if pooled:
        tensors["pooled"] = np.stack(pooled, axis=-2)
    tensors |= text_tensors(texts) | span_tensors(encodings) | vector_tensors(encodings)
    if any(encoding.windows for encoding in encodings):
        tensors["windows"] = np.array([encoding.windows for encoding in encodings], np.int32)
    if ranges is not None:
        tensors["vector_ranges"] = ranges
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return safetensors_parts(contiguous, metadata(header, texts))
