"""`POST /attention` on pictures against transformers: patches, special tokens and pixels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load
from transformers import AutoImageProcessor, CLIPModel, Dinov2WithRegistersModel

from model.artifact.manifest import Artifact
from service.api.native.attention.replies import AttentionReply
from service.api.wire.media import SAFETENSORS
from tests.service.harness import assert_problem, serving
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio
FILE = picture(seed=3, width=70, height=40)
INPUT = element(FILE)
SPECIAL = ["[CLS]", "[REG 1]", "[REG 2]"]


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], picture_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(picture_checkpoint, "pictures")) as client:
        yield client


@pytest.fixture(scope="module")
def maps(picture_checkpoint: Path) -> Any:
    """Return transformers' maps of the picture, `[L, N, S, S]`: eager, in float32."""
    model = Dinov2WithRegistersModel.from_pretrained(
        picture_checkpoint, attn_implementation="eager"
    )
    processor = AutoImageProcessor.from_pretrained(picture_checkpoint, backend="pil")
    pixels = processor(Image.open(BytesIO(FILE)), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = model.eval()(pixels, output_attentions=True).attentions
    return torch.stack(found)[:, 0].numpy()


async def asked(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    reply = await client.post("/attention", json={"inputs": INPUT} | body)
    assert reply.status_code == 200, reply.text
    AttentionReply.model_validate(reply.json())
    (result,) = reply.json()["results"]
    found: dict[str, Any] = result
    return found


async def test_maps_are_transformers_and_tokens_are_patches(
    client: httpx.AsyncClient, maps: Any
) -> None:
    found = await asked(client, include=["weights", "stats", "rollout", "norms"])
    np.testing.assert_allclose(found["attention"], maps, atol=1e-5)
    patches = [f"{row},{column}" for row in range(2) for column in range(3)]
    assert found["tokens"] == [*SPECIAL, *patches]
    assert (found["grid"], found["size"]) == ([2, 3], [70, 40])
    np.testing.assert_allclose(found["stats"]["cls"], maps[..., 0].mean(axis=-1), atol=1e-5)


async def test_rows_of_patches_and_special_tokens(client: httpx.AsyncClient, maps: Any) -> None:
    asked_for = {"queries": ["[REG 2]", [1, 0], [-1, -1]], "keys": [[0, 1], "[CLS]"]}
    found = await asked(client, **asked_for)
    assert (found["queries"], found["keys"]) == ([2, 6, 8], [4, 0])
    np.testing.assert_allclose(found["attention"], maps[:, :, [2, 6, 8]][..., [4, 0]], atol=1e-5)
    scores = await client.post(
        "/attention/scores", json={"inputs": INPUT, "layer": 1, "head": 2} | asked_for
    )
    (head,) = scores.json()["results"]
    np.testing.assert_allclose(head["weights"], maps[1, 2][[2, 6, 8]][:, [4, 0]], atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
async def test_maps_over_the_pixels_of_the_picture(
    client: httpx.AsyncClient, maps: Any, mode: str
) -> None:
    """The centre crop of 42 × 28 of the picture resized to 84 × 48 is 35 × 23.3 of its pixels."""
    body = {"inputs": INPUT, "queries": ["[CLS]", [0, 2]], "enlarge": mode, "include": ["weights"]}
    found = await asked(client, **body)
    reply = await client.post("/attention", json=body, headers={"accept": SAFETENSORS})
    enlarged = load(reply.content)["attention.0"]
    assert enlarged.shape == (2, 3, 2, 40, 70)
    np.testing.assert_allclose(found["attention"], enlarged, atol=1e-6)
    left, top, right, bottom = found["crop"]
    assert (left, right) == pytest.approx((17.5, 52.5), abs=0.5)
    rows, columns = range(round(top), round(bottom)), range(round(left), round(right))
    outside = np.delete(np.delete(enlarged, columns, axis=-1), rows, axis=-2)
    assert not outside.any()
    patches = torch.from_numpy(maps[:, :, [0, 5], 3:].reshape(6, 2, 2, 3))
    x = (np.arange(70) + 0.5 - left) / (right - left) * 2 - 1
    y = (np.arange(40) + 0.5 - top) / (bottom - top) * 2 - 1
    places = torch.tensor(np.stack(np.meshgrid(x, y), axis=-1)[None], dtype=torch.float32)
    expected = torch.nn.functional.grid_sample(
        patches, places.expand(6, -1, -1, -1), mode, padding_mode="border", align_corners=False
    ).numpy()
    inside = (((y >= -1) & (y < 1))[:, None] & ((x >= -1) & (x < 1))).astype("f4")
    np.testing.assert_allclose(enlarged.reshape(6, 2, 40, 70), expected * inside, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"queries": [[2, 0]]}, "queries: row 2 is not in -2 … 1, the rows of a picture"),
        ({"queries": ["[SEP]"]}, "the special tokens of a picture are [CLS], [REG 1], [REG 2]"),
        ({"queries": [0, "[CLS]"]}, "queries: one of inputs[0] is listed twice"),
        ({"enlarge": "nearest"}, "enlarge needs `queries`, whose maps are enlarged"),
        ({"enlarge": "nearest", "queries": [0], "keys": [1]}, "and no keys or max_size"),
        ({"enlarge": "nearest", "queries": [0], "top_k": 1}, "enlarge and top_k both choose keys"),
        ({"tower": "vision"}, "tower: this model has one encoder; leave it out"),
        ({"enlarge": "cubic", "queries": [0]}, "enlarge"),
    ],
)
async def test_what_is_refused(client: httpx.AsyncClient, body: dict[str, Any], says: str) -> None:
    assert_problem(await client.post("/attention", json={"inputs": INPUT} | body), 422, says)


async def test_too_many_pixels_are_refused_beforehand(client: httpx.AsyncClient) -> None:
    large = element(picture(width=1000, height=800, kind="JPEG"))
    body = {"inputs": [large], "enlarge": "nearest", "queries": [0, 1, 2]}
    reply = await client.post("/attention", json=body)
    problem = assert_problem(reply, 413, "ask for fewer pictures, queries, layers or heads")
    assert not problem["retryable"]


async def test_a_tower_is_chosen_by_the_inputs(
    exported: Callable[..., Artifact], clip_checkpoint: Path
) -> None:
    model = CLIPModel.from_pretrained(clip_checkpoint, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(clip_checkpoint, backend="pil")
    pixels = processor(Image.open(BytesIO(FILE)), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = model.vision_model(pixels, output_attentions=True).attentions
    async with serving(exported(clip_checkpoint, "clip")) as client:
        seen = await asked(client, tower="vision")
        np.testing.assert_allclose(seen["attention"], torch.stack(found)[:, 0], atol=1e-5)
        assert (seen["tower"], seen["tokens"][:2]) == ("vision", ["[CLS]", "0,0"])
        text = await asked(client, inputs="two cats", tower="text", heads=[2])
        assert text["tower"] == "text"
        for body, says in (
            ({"tower": "text"}, "tower: the inputs are for the vision tower; leave `tower` out"),
            ({"inputs": [INPUT, "two cats"]}, "send texts and pictures in requests of their own"),
            ({"heads": [2]}, "heads: 2 is not in -2 … 1"),
            (
                {"inputs": "two cats", "queries": [[0, 0]]},
                "queries: names and [row, column] are for pictures",
            ),
            (
                {"inputs": "two cats", "queries": [0], "enlarge": "nearest"},
                "enlarge is for pictures, and these inputs are texts",
            ),
        ):
            reply = await client.post("/attention", json={"inputs": INPUT} | body)
            assert_problem(reply, 422, says)
