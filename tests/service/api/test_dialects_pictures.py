"""A picture in each dialect's form has the vector that /encode gives for it."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.settings import Settings
from tests.service.harness import Client, serving
from tests.service.pictures import picture, pictures_of
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio
FILES = [picture(1), picture(2, kind="JPEG")]
TEXTS = [base64.b64encode(file).decode() for file in FILES]
URLS = [f"data:image/png;base64,{text}" for text in TEXTS]
PARTS = [{"type": "image_url", "image_url": {"url": url}} for url in URLS]


@pytest.fixture(scope="module")
async def pictures(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of an application with a model of pictures."""
    own = pictures_of(artifact)
    async with serving(own, fake_of(own)) as client:
        yield client


async def encoded(client: Client, count: int) -> np.ndarray:
    """Return the unit vectors of /encode, which other tests compare with oracles."""
    inputs = [{"image": text} for text in TEXTS[:count]]
    body = {"inputs": inputs, "outputs": ["pooled"], "normalize": True}
    results = (await client.post("/encode", json=body)).json()["results"]
    return np.array([result["pooled"] for result in results])


ONE_MESSAGE = {"messages": [{"role": "user", "content": PARTS[:1]}]}
FORMS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/embeddings", {"input": [{"image": TEXTS[0]}, {"image": URLS[1]}]}, 2),
    ("/v1/embeddings", ONE_MESSAGE, 1),
    ("/pooling", ONE_MESSAGE | {"use_activation": True}, 1),
    ("/embeddings", {"input": URLS, "modality": "image"}, 2),
    ("/embeddings", {"input": URLS[0], "modality": "image"}, 1),
    ("/v2/embed", {"inputs": [{"content": [part]} for part in PARTS]}, 2),
    ("/v2/embed", {"images": URLS, "input_type": "image"}, 2),
    ("/v1/embed", {"images": URLS, "embedding_types": ["float"]}, 2),
]


@pytest.mark.parametrize(("path", "body", "count"), FORMS)
async def test_pictures(pictures: Client, path: str, body: dict[str, Any], count: int) -> None:
    answer = await pictures.post(path, json=body)
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    if path.endswith("/embed"):
        vectors = reply["embeddings"]["float"]
        assert reply["texts"] == []
    else:
        vectors = [item.get("embedding", item.get("data")) for item in reply["data"]]
        assert reply["usage"]["prompt_tokens"] == count * 7
    np.testing.assert_allclose(vectors, await encoded(pictures, count), atol=1e-6)


TEXT = {"type": "text", "text": "two words"}
MIXED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": [{"image": TEXTS[0]}, "two words", {"image": TEXTS[1]}]}),
    ("/v2/embed", {"inputs": [{"content": [part]} for part in (PARTS[0], TEXT, PARTS[1])]}),
]


@pytest.mark.parametrize(("path", "body"), MIXED)
async def test_texts_and_pictures_of_two_towers(
    artifact: Artifact, path: str, body: dict[str, Any]
) -> None:
    vision = pictures_of(artifact, hidden_size=artifact.manifest.config.hidden_size)
    app = create_app(Settings(engine="fake"), [dataclasses.replace(artifact, vision=vision)])
    async with app.router.lifespan_context(app), Client(app) as client:
        reply = (await client.post(path, json=body)).json()
        inputs = [{"image": TEXTS[0]}, "two words", {"image": TEXTS[1]}]
        wanted = {"inputs": inputs, "outputs": ["pooled"], "normalize": True}
        expected = (await client.post("/encode", json=wanted)).json()
        damaged = await client.post("/v1/embeddings", json={"input": ["a", {"image": "QQ=="}]})
    if path == "/v2/embed":
        assert reply["texts"] == ["two words"]
        vectors = reply["embeddings"]["float"]
    else:
        vectors = [item["embedding"] for item in reply["data"]]
        assert reply["usage"]["total_tokens"] == expected["usage"]["tokens"] == 7 + 4 + 7
    pooled = [result["pooled"] for result in expected["results"]]
    np.testing.assert_allclose(vectors, pooled, atol=1e-6)
    assert damaged.json()["error"]["message"].startswith("input[1]: ")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {"input": ["a"]}, "input[0] is a text, and the model reads pictures"),
        ("/v1/embeddings", {"input": [{"image": "!"}]}, "input[0].image is not base64"),
        ("/v1/embeddings", {"input": {"image": "https://a.b/c"}}, "this service fetches no pict"),
        (
            "/v1/embeddings",
            {"input": [{"image": TEXTS[0]}], "late_chunking": True},
            "late_chunking: input[0] is a picture",
        ),
        (
            "/pooling",
            ONE_MESSAGE | {"truncate_prompt_tokens": 3},
            "truncate_prompt_tokens: pictures are not cut",
        ),
        ("/embeddings", {"input": [TEXTS[0]], "modality": "image"}, "input[0]: a data URL"),
        ("/embeddings", {"input": URLS[0], "modality": "audio"}, "does not embed audio"),
        ("/v2/embed", {"images": URLS, "max_tokens": 3}, "max_tokens: pictures are not cut"),
        ("/embed", {"inputs": "a"}, "inputs[0] is a text, and the model reads pictures"),
        ("/embed", {"inputs": {"image": TEXTS[0]}}, "a text, a list of token ids"),
    ],
)
async def test_refusals(pictures: Client, path: str, body: dict[str, Any], says: str) -> None:
    refused = await pictures.post(path, json=body)
    assert refused.status_code in (400, 422)
    assert says in refused.text


async def test_models_of_texts_refuse_pictures(client: Client) -> None:
    for path, body, _ in FORMS:
        refused = await client.post(path, json=body)
        assert refused.status_code in (400, 422), path
        assert any(
            says in refused.text
            for says in (
                "is a picture, and the model reads only texts",
                "messages: this model reads texts only",
                "does not embed image",
            )
        ), refused.text
