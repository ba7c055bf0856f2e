"""Comparison of a service's answers with sentence-transformers on the checkpoint itself."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from deploy.image.engine import EngineError

TEXT = "Hello world"
LEAST_COSINE = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.97}
"""Minimum cosine between a pooled vector and the reference's, by the artifact's precision."""
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON reply to a GET, or to a POST if there is a body."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with OPENER.open(request, timeout=120) as reply:
        return json.load(reply)


def check(what: str, value: float, passes: bool) -> None:
    """Print a measured value.

    Raises:
        EngineError: the value does not pass.

    """
    print(f"        {what} {value:.3g}", flush=True)
    if not passes:
        raise EngineError(f"{what} {value:.3g} is too large")


def reference(checkpoint: str) -> dict[str, np.ndarray]:
    """Return `pooled` (h,), `tokens` (s, h) and `maps` (layers, n_h, s, s) of the text."""
    model = SentenceTransformer(
        checkpoint, device="cpu", model_kwargs={"attn_implementation": "eager"}
    )
    transformer: Any = model[0]
    with torch.inference_mode():
        output = transformer.auto_model(**model.tokenize([TEXT]), output_attentions=True)
    return {
        "pooled": model.encode(TEXT),
        "tokens": output.last_hidden_state[0].numpy(),
        "maps": torch.stack(output.attentions)[:, 0].numpy(),
    }


def compare(url: str, expected: dict[str, np.ndarray], precision: str, backend: str) -> None:
    """Compare /encode and /attention of a backend with the reference.

    Raises:
        EngineError: a difference exceeds the tolerance of the precision.

    """
    exact = precision == "fp32" or backend == "torch"
    least = LEAST_COSINE["fp32" if exact else precision]
    body = {"inputs": TEXT, "backend": backend}
    result = ask(f"{url}/encode", body)["results"][0]
    pooled = np.array(result["pooled"])
    norms = np.linalg.norm(pooled) * np.linalg.norm(expected["pooled"])
    cosine = float(pooled @ expected["pooled"] / norms)
    check(f"{backend}: 1 - cosine of the pooled vector", 1 - cosine, cosine >= least)
    tokens = float(np.abs(expected["tokens"] - result["embeddings"]).max())
    check(f"{backend}: largest difference of a token's vector", tokens, tokens < 1e-4 or not exact)
    result = ask(f"{url}/attention", body)["results"][0]
    maps = float(np.abs(expected["maps"] - result["attention"]).max())
    check(f"{backend}: largest difference of an attention weight", maps, maps < 1e-5 or not exact)


def verify(url: str) -> None:
    """Have the service compare its graph with PyTorch.

    Raises:
        EngineError: the verification fails.

    """
    if not ask(f"{url}/verify", {"inputs": TEXT})["passed"]:
        raise EngineError("POST /verify: failed")
    print("        POST /verify: passed")


def drain(url: str, terminate: Callable[[], None]) -> None:
    """Stop the service while it computes, and check that the reply arrives whole.

    Args:
        url: URL of the service.
        terminate: function that sends SIGTERM to the service.

    Raises:
        EngineError: the running request was not answered.

    """
    texts = [f"{TEXT} {number} " * 60 for number in range(32)]
    replies: list[Any] = []
    running = threading.Thread(
        target=lambda: replies.append(
            ask(f"{url}/encode", {"inputs": texts, "outputs": ["pooled"]})
        )
    )
    running.start()
    running.join(0.15)
    in_time = running.is_alive()
    terminate()
    running.join()
    if not in_time or len(replies[0]["results"]) != len(texts):
        raise EngineError("the running request was not answered, or ended before the signal")
    print("        the request that ran at SIGTERM was answered whole")
