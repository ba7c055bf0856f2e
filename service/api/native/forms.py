"""Replies as bytes: JSON, base64 in JSON, safetensors. Pure.

Notation: B texts, T tokens of all texts, S_i tokens of text i, H hidden size.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from service.api.safetensors import safetensors_parts
from service.engines.contract import Floats
from service.inference.tokenizer import TokenizedText

JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
Body = list[bytes | memoryview]
"""A reply's body in parts, so that no large one is copied."""
JSON_BYTES_PER_FLOAT = 15
"""Of a float32 with its comma, on the safe side of the mean (measured: up to 11.8 for hidden
states, 12.7 for unit vectors, 14.1 for the maps of one head)."""


@dataclass(frozen=True)
class Header:
    """What stands over the results of a reply."""

    model: str
    backend: str
    fields: dict[str, list[int]]
    """`layers` and `heads` of /attention."""


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """One text's vectors, those that were asked for."""

    text: TokenizedText
    embeddings: Floats | None
    """`[S, H]`."""
    pooled: Floats | None
    """`[H]`, or the first `dimensions` of it."""


def encode_json(header: Header, results: Sequence[EncodeResult], *, as_base64: bool) -> Body:
    """The JSON reply of /encode; a vector that was not asked for is absent."""
    shaped = []
    for result in results:
        fields = text_fields(result.text)
        for name, array in (("embeddings", result.embeddings), ("pooled", result.pooled)):
            if array is not None:
                fields[name] = _base64(array) if as_base64 else np.ascontiguousarray(array)
        shaped.append(fields)
    reply = {
        **names(header),
        "results": shaped,
        "usage": usage([result.text for result in results]),
    }
    return [orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)]


def encode_safetensors(header: Header, results: Sequence[EncodeResult]) -> Body:
    """The binary reply of /encode: `embeddings` `[T, H]` and `pooled` `[B, H]`."""
    tensors: dict[str, NDArray[Any]] = {}
    embeddings = [result.embeddings for result in results if result.embeddings is not None]
    pooled = [result.pooled for result in results if result.pooled is not None]
    if embeddings:
        tensors["embeddings"] = np.concatenate(embeddings)
    if pooled:
        tensors["pooled"] = np.stack(pooled)
    texts = [result.text for result in results]
    tensors |= text_tensors(texts)
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    return safetensors_parts(contiguous, metadata(header, texts))


def usage(texts: Sequence[TokenizedText]) -> dict[str, int]:
    """What a request cost."""
    return {"inputs": len(texts), "tokens": sum(len(text.input_ids) for text in texts)}


def text_fields(text: TokenizedText) -> dict[str, Any]:
    """What every JSON reply says of a text."""
    return {
        "tokens": text.tokens,
        "token_ids": text.input_ids,
        "offsets": text.offsets,
        "segment_ids": text.segment_ids,
        "truncated": text.truncated,
    }


def names(header: Header) -> dict[str, Any]:
    """What stands before the results in JSON."""
    return {"model": header.model, "backend": header.backend, **header.fields}


def _base64(array: Floats) -> str:
    return base64.b64encode(array.astype("<f4", copy=False).tobytes()).decode("ascii")


def text_tensors(texts: Sequence[TokenizedText]) -> dict[str, NDArray[Any]]:
    """What every binary reply says of its texts."""
    lengths = [len(text.input_ids) for text in texts]
    return {
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "token_ids": np.concatenate([text.input_ids for text in texts]).astype(np.int32),
        "segment_ids": np.concatenate([text.segment_ids for text in texts]).astype(np.int32),
        "truncated": np.array([text.truncated for text in texts], np.uint8),
    }


def metadata(header: Header, texts: Sequence[TokenizedText]) -> dict[str, str]:
    """The `__metadata__` of every binary reply; lists as JSON."""
    lists = header.fields | {
        "tokens": [text.tokens for text in texts],
        "offsets": [text.offsets for text in texts],
        "usage": usage(texts),
    }
    encoded = {name: orjson.dumps(value).decode() for name, value in lists.items()}
    return encoded | {"model": header.model, "backend": header.backend}
