"""`POST /encode` of pictures by one tower or two, against transformers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from PIL import Image
from safetensors.numpy import load
from transformers import (
    AutoTokenizer,
    BitImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPModel,
    Dinov2WithRegistersModel,
)

from model.artifact.manifest import Artifact
from service.app import create_app
from service.engines.contract import Pooling, TextTask
from service.inference.pictures import PictureReader
from service.inference.tokenization.inputs import Picture
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import Client, assert_problem, serving, until
from tests.service.pictures import PATCHES, element, picture, pictures_of
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


FILES = [picture(0), picture(1, 12, 40)]
ALONE: dict[str, Any] = {"normalize": False, "layer": 1, "pooling": "cls"}


@pytest.fixture(scope="module")
def pictures(artifact: Artifact) -> Artifact:
    return pictures_of(artifact)


@pytest.fixture(scope="module")
async def client(pictures: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    async with serving(pictures, fake_of(pictures)) as client:
        yield client


def vectors_of(artifact: Artifact, data: bytes, layer: int = 1) -> Any:
    """Return what the fake engine computes of a picture's pixels, which test_reader checks."""
    text = PictureReader(artifact.manifest, 10**6).read(Picture(data), "")
    task = TextTask(
        text.input_ids, text.segment_ids, (layer,), Pooling(layer, "cls"), pixels=text.pixels
    )
    return fake_of(artifact).expected(task)


async def test_a_reply_has_the_patches_and_what_was_seen(
    client: Client, pictures: Artifact
) -> None:
    reply = await client.post("/encode", json={"inputs": list(map(element, FILES)), **ALONE})
    results = reply.json()["results"]
    assert [own["size"] for own in results] == [[30, 20], [12, 40]]
    for own, data in zip(results, FILES, strict=True):
        assert (own["grid"], own["crop"]) == ([2, 3], [0, 0, *own["size"]])
        assert own["tokens"][:3] == ["[CLS]", "0,0", "0,1"]
        assert "tower" not in own
        expected = vectors_of(pictures, data)
        np.testing.assert_array_equal(np.float32(own["embeddings"]), expected.hidden[0])
        np.testing.assert_array_equal(np.float32(own["pooled"]), expected.pooled)
    assert reply.json()["usage"] == {"inputs": 2, "tokens": 2 * PATCHES.tokens}
    assert reply.headers["x-compute-tokens"] == str(2 * PATCHES.tokens)


async def test_a_damaged_picture_fails_its_request_alone(client: Client) -> None:
    good, bad = element(FILES[0]), element(FILES[0][:900])
    failed = await client.post("/encode", json={"inputs": [good, good, bad, good]})
    assert_problem(failed, 422, "inputs[2]: the PNG file is truncated or damaged")
    assert (await client.post("/encode", json={"inputs": [good, good]})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/encode", {"inputs": "a text"}, "inputs[0] is a text, and the model reads pictures"),
        ("/tokenize", {"inputs": "a text"}, "reads pictures and has no tokenizer"),
        ("/encode", {"inputs": [element(FILES[0])], "spans": [[]]}, "inputs[0] is a picture"),
        ("/encode", {"inputs": element(FILES[0]), "prompt_name": "query"}, "prompt_name is for te"),
        ("/encode", {"inputs": element(FILES[0]), "overflow": "windows"}, "overflow and chunk are"),
        ("/v1/embeddings", {"input": "a text", "model": "m"}, "is a text, and the model reads"),
    ],
)
async def test_what_is_for_texts_is_refused(
    client: Client, path: str, body: dict[str, Any], why: str
) -> None:
    reply = await client.post(path, json=body)
    assert reply.status_code in (400, 422)  # the dialects have their own
    assert why in reply.text


async def test_pictures_are_admitted_by_their_tokens_before_they_are_decoded(
    pictures: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes at most half of the queue: 7 pictures of 7 tokens, of 98 tokens."""
    async with serving(pictures, fake_of(pictures), max_queue_tokens=98) as client:
        fits = await client.post("/encode", json={"inputs": [element(FILES[0])] * 7})
        monkeypatch.setattr(PictureReader, "head", lambda *_: pytest.fail("it was opened"))
        refused = await client.post("/encode", json={"inputs": [element(FILES[0])] * 8})
    assert fits.status_code == 200
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert "56 tokens" in refused.json()["detail"]


async def test_a_model_of_pictures_has_no_vocabulary(client: Client) -> None:
    reply = await client.get("/vocabulary?index=1")
    assert reply.status_code == 422
    assert "reads pictures and has no tokenizer" in reply.text


PHOTOS = [picture(0, 60, 40), picture(1, 31, 90, "JPEG"), picture(2, 5, 4)]
SIZES = [[60, 40], [31, 90], [5, 4]]


@pytest.fixture(scope="module")
async def picture_client(picture_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    async with serving(picture_artifact) as picture_client:
        yield picture_client


@pytest.fixture(scope="module")
def expected(picture_checkpoint: Path) -> list[Any]:
    """Return transformers' outputs of each picture."""
    model = Dinov2WithRegistersModel.from_pretrained(picture_checkpoint, dtype=torch.float32)
    processor = BitImageProcessorPil.from_pretrained(picture_checkpoint)
    images = [Image.open(BytesIO(data)).convert("RGB") for data in PHOTOS]
    values = [processor(image, return_tensors="pt")["pixel_values"] for image in images]
    with torch.inference_mode():
        return [model.eval()(own, output_hidden_states=True) for own in values]


@pytest.mark.parametrize("backend", ["onnx", "torch"])
async def test_vectors_over_http_are_transformers(
    picture_client: Client, expected: list[Any], backend: str
) -> None:
    asked = {"inputs": list(map(element, PHOTOS)), "layers": [0, 1, 2], "backend": backend}
    results = (await picture_client.post("/encode", json=asked)).json()["results"]
    assert [own["size"] for own in results] == SIZES
    for own, reference in zip(results, expected, strict=True):
        states = [*reference.hidden_states[:-1], reference.last_hidden_state]
        for found, state in zip(own["embeddings"], states, strict=True):
            np.testing.assert_allclose(found, state[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(own["pooled"][2], states[2][0, 0].numpy(), atol=1e-4)
        assert own["grid"] == [2, 3]
        assert own["tokens"][:4] == ["[CLS]", "[REG 1]", "[REG 2]", "0,0"]


async def test_pictures_are_verified_and_engines_agree(picture_client: Client) -> None:
    reply = (await picture_client.post("/verify", json={"inputs": [element(PHOTOS[0])]})).json()
    assert (reply["passed"], reply["inputs"]) == (True, 1)
    assert len(reply["attention"]) == 2 * 3


async def test_a_live_picture_is_verified(picture_artifact: Artifact) -> None:
    """The share is all batches: the metric counts one that passed."""
    app = create_app(Settings(verify_share=1.0), [picture_artifact])
    async with app.router.lifespan_context(app), Client(app) as picture_client:
        verification = state_of(app).models.default.health.live_verification
        await picture_client.post("/encode", json={"inputs": element(PHOTOS[0])})
        await until(lambda: verification._comparing is not None and verification._comparing.done())
        metrics = (await picture_client.get("/metrics")).text
        assert re.search(r'verified_batches_total{model=".+",result="passed"} 1.0', metrics)
        assert (await picture_client.get("/health/ready")).json() == {"status": "ready"}


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
    [({"spans": [[], []]}, "spans is for inputs of one tower"), ({"layers": [9]}, "layers: 9")],
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


CLIP_PHOTOS = [picture(0, 60, 40), picture(1, 31, 90)]
TEXTS = ["a red square", "a dog"]
ACCEPT = {"accept": "application/vnd.safetensors"}


@pytest.fixture(scope="module")
async def clip_client(
    exported: Callable[..., Artifact], clip_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[Client]:
    app = create_app(Settings(), [exported(clip_checkpoint, "clip")])
    async with app.router.lifespan_context(app), Client(app) as clip_client:
        yield clip_client


@pytest.fixture(scope="module")
def reference(clip_checkpoint: Path) -> Any:
    """Return transformers' outputs of both texts and both pictures."""
    model = CLIPModel.from_pretrained(clip_checkpoint, dtype=torch.float32).eval()
    processor = CLIPImageProcessorPil.from_pretrained(clip_checkpoint)
    images = [Image.open(BytesIO(data)).convert("RGB") for data in CLIP_PHOTOS]
    ids = AutoTokenizer.from_pretrained(clip_checkpoint)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**ids, **processor(images, return_tensors="pt"), output_hidden_states=True)


async def test_texts_and_pictures_of_a_request_are_transformers(
    clip_client: Client, reference: Any
) -> None:
    inputs = [element(CLIP_PHOTOS[0]), TEXTS[0], TEXTS[1], element(CLIP_PHOTOS[1])]
    asked = {"inputs": inputs, "normalize": True}
    reply = await clip_client.post("/encode", json=asked)
    results = reply.json()["results"]
    assert [own["tower"] for own in results] == ["vision", "text", "text", "vision"]
    expected = torch.cat([reference.image_embeds[:1], reference.text_embeds])
    expected = torch.cat([expected, reference.image_embeds[1:]]).numpy()
    np.testing.assert_allclose([own["pooled"] for own in results], expected, atol=1e-5)
    for own, state in zip(
        (results[0], results[3]), reference.vision_model_output.last_hidden_state, strict=True
    ):
        np.testing.assert_allclose(own["embeddings"], state.numpy(), atol=1e-4)
    pooled = {**asked, "outputs": ["pooled"], "encoding_format": "base64"}
    binary = (await clip_client.post("/encode", json=pooled)).json()["results"]
    assert len({len(own["pooled"]) for own in binary}) == 1


async def test_token_vectors_of_different_sizes_are_no_tensor(clip_client: Client) -> None:
    inputs = [TEXTS[0], element(CLIP_PHOTOS[0])]
    refused = await clip_client.post("/encode", json={"inputs": inputs}, headers=ACCEPT)
    assert refused.status_code == 422
    assert "24 features in the text tower and 16 in the other" in refused.json()["detail"]
    pooled = {"inputs": inputs, "outputs": ["pooled"]}
    assert (await clip_client.post("/encode", json=pooled, headers=ACCEPT)).status_code == 200


async def test_both_towers_are_verified_and_released_together(clip_client: Client) -> None:
    for inputs in ([TEXTS[0]], [element(CLIP_PHOTOS[0])]):
        assert (await clip_client.post("/verify", json={"inputs": inputs})).json()["passed"]
    mixed = await clip_client.post("/verify", json={"inputs": [TEXTS[0], element(CLIP_PHOTOS[0])]})
    assert "inputs[1] for the other" in mixed.json()["detail"]
    state = state_of(clip_client.app)
    names = list(state.models.health())
    assert names == [names[0], f"{names[0]}:vision"]
