"""Clients of other services, unchanged, against this service.

Each must get the service's own vectors, and its own exceptions with the service's message. A client
is a script in `scripts/`. Clients that the project's tests need anyway run in the tests'
environment, all others in one that `make clients` makes. docs/dialects.md lists them all.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.api.kserve.models import EXTENSIONS
from service.api.kserve.outputs import TENSORS
from tests.drop_in.conftest import EMBEDDER, FILES, PICTURES, PYTHON, QUERY, RANKER, TEXTS, Served

TOO_LONG = "1002 tokens"
OURS = Path(sys.executable)
DOCS = Path(__file__).parents[2] / "docs" / "dialects.md"


@dataclass(frozen=True)
class Client:
    """A client's script, and the exceptions that the client raises for refused requests."""

    package: str
    """Name of the client's distribution."""
    script: str
    error: str
    """Exception for a text that is too long; empty where the client asks to cut it."""
    refused: str
    """Exception for a request with an unknown key."""
    normalize: bool | None = True
    """Whether the dialect's vectors are unit vectors; the checkpoint's own choice when None."""
    python: Path = PYTHON


OPENAI = ("BadRequestError", "AuthenticationError")
HUB = ("HfHubHTTPError", "HfHubHTTPError")
CLIENTS = [
    Client("chromadb", "chroma", *OPENAI),
    Client("cohere", "cohere_client", "BadRequestError", "UnauthorizedError"),
    Client("cohere", "cohere_first_version", "BadRequestError", "UnauthorizedError"),
    Client("crewai", "crewai_embedder", *OPENAI),
    Client("dspy", "dspy_embedder", "BadRequestError", "BadRequestError"),
    Client("haystack-ai", "haystack_openai", *OPENAI),
    Client("huggingface_hub", "hub", *HUB),
    Client("huggingface_hub", "hub", *HUB, python=OURS),
    Client("infinity_client", "infinity", "", "UnexpectedStatus"),
    Client("instructor", "instructor_client", *OPENAI),
    Client("langchain-cohere", "langchain_cohere_client", "BadRequestError", "UnauthorizedError"),
    Client("langchain-huggingface", "langchain_huggingface_endpoint", *HUB),
    Client("langchain-openai", "langchain_openai_client", *OPENAI),
    Client("litellm", "litellm_client", "BadRequestError", "BadRequestError"),
    Client("llama-index", "llama_index_openai", *OPENAI),
    Client("llama-index", "llama_index_tei", "", "JSONDecodeError"),
    Client("mem0ai", "mem0_embedder", *OPENAI),
    Client("openai", "openai_client", *OPENAI),
    Client("openai", "openai_client", *OPENAI, python=OURS),
    Client("ragas", "ragas_embeddings", *OPENAI),
    Client("requests", "requests_alone", "RuntimeError", "RuntimeError", python=OURS),
    Client("semantic-router", "semantic_router_encoders", "ValueError", "ValueError"),
    Client(
        "tritonclient",
        "triton_client",
        "InferenceServerException",
        "InferenceServerException",
        normalize=None,
    ),
    Client("txtai", "txtai_vectors", "BadRequestError", "BadRequestError"),
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
    if "pictures" in found:
        images = [{"image": file} for file in FILES]
        asked = {"model": PICTURES, "inputs": images, "outputs": ["pooled"], "normalize": True}
        expected = np.array([own["pooled"] for own in served.ask("/encode", **asked)["results"]])
        for vectors in found["pictures"]:
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
    if client.error:
        assert found["error"]["type"] == client.error, found["error"]
        assert TOO_LONG in found["error"]["text"]
    assert found["refused"]["type"] == client.refused, found["refused"]


def test_tritonclient_reads_heads_in_both_forms(served: Served) -> None:
    found = served.run("triton_client")
    assert found["ready"] == [True] * 5
    assert found["extensions"] == list(EXTENSIONS)
    of_task_heads = ("sparse", "multivector")
    assert found["outputs"] == [name for name in TENSORS if not name.startswith(of_task_heads)]
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


def test_the_documented_clients_are_the_tested_ones() -> None:
    _, _, section = DOCS.read_text(encoding="utf-8").partition("## Clients that are tested")
    documented = re.findall(r"^\| ([\w-]+) \|", section, re.MULTILINE)[1:]
    assert documented == sorted({client.package for client in CLIENTS})


def test_langchains_own_token_ids_are_refused_with_the_setting_that_sends_texts(
    served: Served,
) -> None:
    refusal = served.run("langchain_openai_client")["token_ids"]
    assert refusal["type"] == "BadRequestError"
    assert "check_embedding_ctx_length=False" in refusal["text"]


def test_txtai_finds_each_text_by_itself(served: Served) -> None:
    assert served.run("txtai_vectors")["nearest"] == [*range(len(TEXTS))]


def test_openais_client_lists_the_models(served: Served) -> None:
    assert served.run("openai_client", OURS)["models"] == [EMBEDDER, RANKER, PICTURES]
