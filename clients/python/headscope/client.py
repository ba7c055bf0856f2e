"""Attention from a running service, in a few lines of Python.

    reply = attention("http://localhost:8000", "The animal didn't cross the street.")
    reply.tokens, reply.weights[3, 1]
    reply.head_view()

Needs numpy and safetensors; the views need BertViz, and with it torch.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from headscope.errors import HeadscopeError
from headscope.reply import Reply

Text = str | Sequence[str]
"""One text, or a pair of them."""
HEADERS = {"Accept": "application/vnd.safetensors", "Content-Type": "application/json"}


def attention(
    url: str,
    text: Text,
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Any,
) -> Reply:
    """One text's attention from the service at `url`.

    Args:
        url: where the service is, such as `http://localhost:8000`.
        text: a text, or a pair `("question", "answer")`.
        api_key: sent as `Authorization: Bearer …`.
        timeout_seconds: of silence, after which it is given up.
        fields: the others of `POST /attention`: `layers`, `heads`, `include`, `ablate`, `top_k`, …

    Raises:
        HeadscopeError: the service refuses, fails, or does not answer; its own words, and status.
        ValueError: `url` is not one of http or https.

    """
    return attentions(url, [text], api_key=api_key, timeout_seconds=timeout_seconds, **fields)[0]


def attentions(
    url: str,
    texts: Sequence[Text],
    *,
    api_key: str | None = None,
    timeout_seconds: float = 120,
    **fields: Any,
) -> list[Reply]:
    """The attention of many texts, or of many pairs, in one request; else as `attention`."""
    body = {"inputs": [text if isinstance(text, str) else list(text) for text in texts]} | fields
    address = f"{url.rstrip('/')}/attention"
    content = post(address, body, api_key, timeout_seconds)
    try:
        return read(content, texts)
    except (ValueError, KeyError, SafetensorError) as error:
        raise HeadscopeError(f"what {address} answers is not of this service") from error


def post(url: str, body: Mapping[str, Any], api_key: str | None, timeout_seconds: float) -> bytes:
    """The reply's bytes."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is not an address of http or https")
    request = urllib.request.Request(url, json.dumps(body).encode(), HEADERS)  # noqa: S310
    if api_key is not None:
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_seconds) as reply:  # noqa: S310
            return bytes(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            raise HeadscopeError(f"{error.code}: {detail(error)}", error.code) from None
    except (OSError, http.client.HTTPException) as error:
        raise HeadscopeError(f"no reply from {url}: {error}") from error


def detail(error: urllib.error.HTTPError) -> str:
    """What the service says went wrong; the status's name if it is not the service that speaks."""
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return str(error.reason)


def read(content: bytes, texts: Sequence[Text]) -> list[Reply]:
    """The binary form, a reply a text."""
    size = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + size])["__metadata__"]
    lists = {name: json.loads(metadata[name]) for name in ("layers", "heads", "tokens", "offsets")}
    tensors = load(content)
    bounds = tensors["cu_seqlens"]
    replies = []
    for i, text in enumerate(texts):
        rows = slice(bounds[i], bounds[i + 1])
        replies.append(
            Reply(
                model=metadata["model"],
                backend=metadata["backend"],
                layers=lists["layers"],
                heads=lists["heads"],
                texts=(text,) if isinstance(text, str) else tuple(text),
                tokens=lists["tokens"][i],
                token_ids=tensors["token_ids"][rows].tolist(),
                segment_ids=tensors["segment_ids"][rows].tolist(),
                offsets=[(start, end) for start, end in lists["offsets"][i]],
                truncated=bool(tensors["truncated"][i]),
                tensors=own(tensors, i),
            )
        )
    return replies


def own(tensors: Mapping[str, NDArray[Any]], i: int) -> dict[str, NDArray[Any]]:
    """Text i's tensors, without its number."""
    found = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        if number == str(i):
            found[f"{kind}.{part}" if part else kind] = tensor
    if "pooled_shift" in tensors:
        found["pooled_shift"] = tensors["pooled_shift"][i]
    return found
