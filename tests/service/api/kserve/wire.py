"""Requests and replies of the Open Inference Protocol, as clients write and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

MODEL = "/v2/models/any/name"
DTYPES = {"FP32": "<f4", "INT32": "<i4", "BOOL": "?"}


def elements(texts: Sequence[str | bytes]) -> bytes:
    """Return a binary BYTES tensor."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(len(one).to_bytes(4, "little") + one for one in encoded)


def in_json(texts: Sequence[Any], shape: Sequence[int], **more: Any) -> dict[str, Any]:
    """Return a request with its texts in the JSON."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": shape, "data": texts}
    return {"inputs": [tensor], **more}


def in_bytes(texts: Sequence[str], shape: Sequence[int], **more: Any) -> dict[str, Any]:
    """Return `httpx`'s arguments for a request with its texts after the JSON."""
    tail = elements(texts)
    tensor = {"name": "text", "datatype": "BYTES", "shape": shape}
    tensor["parameters"] = {"binary_data_size": len(tail)}
    return framed({"inputs": [tensor], **more}, tail)


def framed(content: Any, tail: bytes) -> dict[str, Any]:
    """Return `httpx`'s arguments for JSON and the bytes after it."""
    encoded = json.dumps(content).encode()
    headers = {"inference-header-content-length": str(len(encoded))}
    return {"content": encoded + tail, "headers": headers}


def tensors(response: httpx.Response) -> dict[str, Any]:
    """Return the outputs of a reply in either form, in their stated shapes."""
    assert response.status_code == 200, response.text[:500]
    length = response.headers.get("inference-header-content-length")
    at = len(response.content) if length is None else int(length)
    reply, tail = json.loads(response.content[:at]), memoryview(response.content)[at:]
    found: dict[str, Any] = {}
    for output in reply["outputs"]:
        values = output.get("data")
        if values is None:
            size = output["parameters"]["binary_data_size"]
            values, tail = tail[:size], tail[size:]
        found[output["name"]] = _array(output["datatype"], values).reshape(output["shape"])
    assert not tail
    return found


def _array(datatype: str, values: Any) -> np.ndarray[Any, Any]:
    if isinstance(values, list):
        return np.array(values, DTYPES.get(datatype, object))
    if datatype != "BYTES":
        return np.frombuffer(values, DTYPES[datatype])
    found, at = [], 0
    while at < len(values):
        end = at + 4 + int.from_bytes(values[at : at + 4], "little")
        found.append(bytes(values[at + 4 : end]).decode())
        at = end
    return np.array(found, object)
