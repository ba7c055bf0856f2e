"""Other services' clients, unchanged, at this one: our vectors, and errors as their own exceptions.

Each is a script of `scripts/`. Those of packages that our own tests need anyway run in the tests'
environment, all others in one of their own, which `make clients` makes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.api.kserve.outputs import DATATYPES
from tests.drop_in.conftest import EMBEDDER, PYTHON, QUERY, RANKER, TEXTS, Served

TOO_LONG = "1002 tokens"
OURS = Path(sys.executable)


@dataclass(frozen=True)
class Client:
    """A client, and what becomes of requests that are refused."""

    script: str
    error: str
    """Of a text that is too long; empty where the client asks to cut it."""
    refused: str
    """Without a known key."""
    normalize: bool | None = True
    """Whether the dialect's vectors are unit vectors; the checkpoint's own choice when None."""
    python: Path = PYTHON


CLIENTS = [
    Client("triton", "InferenceServerException", "InferenceServerException", normalize=None),
    Client("openai_client", "BadRequestError", "AuthenticationError"),
    Client("openai_client", "BadRequestError", "AuthenticationError", python=OURS),
    Client("langchain", "BadRequestError", "AuthenticationError"),
    Client("haystack_openai", "BadRequestError", "AuthenticationError"),
    Client("chroma", "BadRequestError", "AuthenticationError"),
    Client("litellm_client", "BadRequestError", "BadRequestError"),
    Client("llama_index_tei", "", "JSONDecodeError"),
    Client("hub", "HfHubHTTPError", "HfHubHTTPError"),
    Client("hub", "HfHubHTTPError", "HfHubHTTPError", python=OURS),
    Client("requests_alone", "RuntimeError", "RuntimeError", python=OURS),
    Client("cohere_client", "BadRequestError", "UnauthorizedError"),
    Client("infinity", "", "UnexpectedStatus"),
]


def name_of(client: Client) -> str:
    return client.script if client.python == PYTHON else f"{client.script}, in ours"


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_a_client_gets_our_vectors_and_its_own_errors(client: Client, served: Served) -> None:
    asked: dict[str, Any] = {"model": EMBEDDER, "inputs": TEXTS, "outputs": ["pooled"]}
    results = served.ask("/encode", **asked, normalize=client.normalize)["results"]
    expected = np.array([result["pooled"] for result in results])
    found = served.run(client.script, client.python)
    for vectors in (found["vectors"], *found.get("others", [])):
        np.testing.assert_allclose(np.array(vectors, float), expected, atol=1e-5)
    if "scores" in found:
        ranked = served.ask("/rerank", model=RANKER, query=QUERY, texts=TEXTS)
        scores = [one["score"] for one in sorted(ranked, key=lambda one: one["index"])]
        for own in found["scores"]:
            np.testing.assert_allclose(own, scores, atol=1e-6)
    if client.error:
        assert found["error"]["type"] == client.error, found["error"]
        assert TOO_LONG in found["error"]["text"]
    assert found["refused"]["type"] == client.refused, found["refused"]


def test_tritonclient_reads_heads_in_both_forms(served: Served) -> None:
    found = served.run("triton")
    assert found["ready"] == [True] * 5
    assert found["extensions"] == ["binary_tensor_data"]
    assert found["outputs"] == [*DATATYPES]
    asked = {"model": EMBEDDER, "inputs": TEXTS}
    maps = served.ask("/attention", **asked, layers=[1], heads=[0, 1])["results"]
    tokens = served.ask("/encode", **asked, outputs=["tokens"])["results"]
    for form in ("binary", "json"):
        shapes = np.array(found[form]["attention_shapes"])
        ends = np.cumsum(shapes.prod(axis=1))
        own = np.split(np.array(found[form]["attention"]), ends[:-1])
        for result, text, shape in zip(maps, own, shapes, strict=True):
            np.testing.assert_allclose(text.reshape(shape), result["attention"], atol=1e-6)
        rows = np.split(np.array(found[form]["embeddings"]), found[form]["cu_seqlens"][1:-1])
        for result, vectors in zip(tokens, rows, strict=True):
            np.testing.assert_allclose(vectors, result["embeddings"], atol=1e-5)
        assert found[form]["tokens"] == [t for result in maps for t in result["tokens"]]


def test_openais_client_lists_the_models(served: Served) -> None:
    assert served.run("openai_client", OURS)["models"] == [EMBEDDER, RANKER]
