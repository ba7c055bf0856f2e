"""Small fake service, and both clients connected to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from headscope import AsyncClient, Client

URL = "http://headscope.test"
INFO = {
    "model_id": "m",
    "version": "1",
    "max_input_length": 100,
    "max_client_batch_size": 3,
    "max_queue_tokens": 10_000,
    "layers": 2,
    "heads": 2,
    "hidden_size": 4,
    "embedding_dimension": 1,
    "engine": "onnx",
    "provider": "CPU",
    "precision": "fp32",
    "backend": "onnx",
    "status": "working",
}
Handler = Callable[[httpx.Request], httpx.Response]


def binary(
    texts: Sequence[Any],
    tensors: dict[str, np.ndarray] | None = None,
    model: str = "m",
    **lists: Any,
) -> bytes:
    """Return the binary reply: one token per character, and `tensors` beside the usual ones."""
    lengths = [len(text) for text in texts]
    common = {
        "cu_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
        "token_ids": np.arange(sum(lengths), dtype=np.int32),
        "segment_ids": np.zeros(sum(lengths), np.int32),
        "truncated": np.zeros(len(texts), np.uint8),
    }
    reported = {"tokens": [list(text) for text in texts], "usage": {}} | lists
    reported["offsets"] = [[(i, i + 1) for i in range(size)] for size in lengths]
    metadata = {name: json.dumps(value) for name, value in reported.items()}
    return save(common | (tensors or {}), metadata | {"model": model, "backend": "onnx"})


def lengths_of(texts: Sequence[str], model: str = "m") -> httpx.Response:
    """Return a reply in which every text's vector is the number that the text spells."""
    pooled = np.array([[float(text)] for text in texts], np.float32)
    return httpx.Response(200, content=binary(texts, {"pooled": pooled}, model))


def sent(request: httpx.Request) -> Any:
    """Return the body of a request."""
    return json.loads(request.content)


def asked(kind: str, name: str, handler: Handler, *arguments: Any, **settings: Any) -> Any:
    """Call a method of one of the clients; `fields` of the settings are those of the call."""
    fields = settings.pop("fields", {})
    transport = httpx.MockTransport(handler)
    if kind == "sync":
        with Client(URL, transport=transport, **settings) as client:
            return getattr(client, name)(*arguments, **fields)

    async def run() -> Any:
        async with AsyncClient(URL, transport=transport, **settings) as client:
            return await getattr(client, name)(*arguments, **fields)

    return asyncio.run(run())


def client_of(served: Any) -> AsyncClient:
    """Return a client of the application that another client uses."""
    return AsyncClient("http://localhost", transport=httpx.ASGITransport(served.app))


class Service:
    """Fake that answers `/embed` calls of numbers; `trouble` may answer or raise before."""

    def __init__(self, trouble=lambda request, count: None) -> None:
        self.trouble, self.requests = trouble, []
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/info":
            return httpx.Response(200, json=INFO)
        with self.lock:
            self.requests.append(request)
            count = len(self.requests)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return self.trouble(request, count) or lengths_of(sent(request)["inputs"])
        finally:
            with self.lock:
                self.now -= 1


def text_fields(tokens: Sequence[str], texts: Sequence[str] = ("",)) -> dict[str, Any]:
    """Return the fields of a `TokenizedText`."""
    size = len(tokens)
    return {
        "model": "<m>",
        "backend": "onnx",
        "texts": tuple(texts),
        "tokens": list(tokens),
        "token_ids": list(range(size)),
        "segment_ids": [0] * size,
        "offsets": [(0, 1)] * size,
        "truncated": False,
    }


def problem(status: int, detail: str, **headers: str) -> httpx.Response:
    """Return an error in the format of the native routes and of TEI's."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={"detail": detail, "error": detail}, headers=names)
