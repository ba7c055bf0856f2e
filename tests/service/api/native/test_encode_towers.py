"""`POST /encode` with texts and pictures, for a model with two towers without graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.app import create_app
from service.settings import Settings
from tests.service.harness import Client, assert_problem
from tests.service.pictures import element, picture, pictures_of

pytestmark = pytest.mark.anyio
FILES = [picture(0), picture(1, 12, 40)]


@pytest.fixture(scope="module")
async def towers(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    vision = pictures_of(artifact, hidden_size=artifact.manifest.config.hidden_size)
    app = create_app(Settings(engine="fake"), [dataclasses.replace(artifact, vision=vision)])
    async with app.router.lifespan_context(app), Client(app) as client:
        yield client


async def test_texts_and_pictures_keep_their_order(towers: Client, artifact: Artifact) -> None:
    """Each tower's vectors are those of a request of its own, and binary replies the same."""
    mixed = [element(FILES[0]), "a text", element(FILES[1]), {"text": "two words"}]
    wanted = {"layers": [0, 1], "ablate": [{"layer": 0, "head": 1}], "normalize": False}
    reply = await towers.post("/encode", json={"inputs": mixed, **wanted})
    results = reply.json()["results"]
    assert [own["tower"] for own in results] == ["vision", "text", "vision", "text"]
    for places, inputs in (((0, 2), [mixed[0], mixed[2]]), ((1, 3), ["a text", "two words"])):
        alone = await towers.post("/encode", json={"inputs": inputs, **wanted})
        assert [results[place] for place in places] == alone.json()["results"]
    binary = await towers.post(
        "/encode",
        json={"inputs": mixed, **wanted},
        headers={"accept": "application/vnd.safetensors"},
    )
    tensors = load(binary.content)
    bounds = tensors["cu_seqlens"]
    for own, first, last in zip(results, bounds, bounds[1:], strict=False):
        assert tensors["token_ids"][first:last].tolist() == own["token_ids"]
        rows = tensors["embeddings"][:, first:last]
        np.testing.assert_array_equal(rows, np.float32(own["embeddings"]))
    pooled = np.float32([own["pooled"] for own in results]).swapaxes(0, 1)
    np.testing.assert_array_equal(tensors["pooled"], pooled)
    head = orjson.loads(binary.content[8 : 8 + int.from_bytes(binary.content[:8], "little")])
    metadata = {name: orjson.loads(head["__metadata__"][name]) for name in ("grid", "tower")}
    assert metadata == {
        "grid": [[2, 3], None, [2, 3], None],
        "tower": ["vision", "text", "vision", "text"],
    }


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spans": [[], []]}, "spans is for inputs of one tower"),
        ({"layers": [9]}, "layers: 9"),
    ],
)
async def test_what_is_of_one_tower_is_refused_for_two(
    towers: Client, fields: dict[str, Any], why: str
) -> None:
    reply = await towers.post("/encode", json={"inputs": ["a", element(FILES[0])], **fields})
    assert reply.status_code == 422
    assert why in reply.text


async def test_errors_name_the_input_of_the_whole_request(towers: Client) -> None:
    inputs = ["a", element(FILES[0]), ["a", "b"], element(FILES[0][:900])]
    reply = await towers.post("/encode", json={"inputs": inputs})
    assert_problem(reply, 422, "inputs[3]: the PNG file is truncated or damaged")


async def test_a_prompt_is_for_the_texts(towers: Client) -> None:
    """The name is unknown to the checkpoint, and only its texts look for it."""
    asked = {"inputs": [element(FILES[0]), "a text"], "prompt_name": "query"}
    reply = await towers.post("/encode", json=asked)
    assert reply.status_code == 422
    assert "prompt" in reply.text
    assert "is for texts" not in reply.text
    kept = {"inputs": asked["inputs"], "overflow": "windows"}
    reply = await towers.post("/encode", json=kept)
    assert reply.status_code == 200, reply.text


async def test_info_and_metrics_know_both_towers(towers: Client) -> None:
    info = (await towers.get("/info")).json()
    assert (info["modalities"], info["towers"]) == (["text", "image"], ["text", "vision"])
    assert (info["layers"], info["vision"]["layers"], info["vision"]["engine"]) == (2, 2, "fake")
    expected = {"height": 8, "width": 12, "patch_size": 4, "grid": [2, 3], "tokens": 7}
    assert expected.items() <= info["images"].items()
    models = (await towers.get("/v1/models")).json()
    assert models["data"][0]["modalities"] == ["text", "image"]
    await towers.post("/encode", json={"inputs": ["a", element(FILES[0])]})
    metrics = (await towers.get("/metrics")).text
    for model in ("small", "small:vision"):
        assert f'headscope_tokens_total{{lane="encode",model="{model}"}}' in metrics
        assert f'headscope_input_tokens_limit{{model="{model}"}}' in metrics
    assert 'headscope_picture_seconds_count{model="small:vision"}' in metrics
    assert 'headscope_picture_seconds_count{model="small"}' not in metrics
    assert (await towers.get("/health/ready")).json() == {"status": "ready"}
