"""`POST /encode` and `/verify` of pictures by ONNX and PyTorch, against transformers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BitImageProcessorPil, Dinov2WithRegistersModel

from model.artifact.manifest import Artifact
from service.app import create_app
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import Client, serving, until
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio
FILES = [picture(0, 60, 40), picture(1, 31, 90, "JPEG"), picture(2, 5, 4)]
SIZES = [[60, 40], [31, 90], [5, 4]]


@pytest.fixture(scope="module")
async def client(picture_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    async with serving(picture_artifact) as client:
        yield client


@pytest.fixture(scope="module")
def expected(picture_checkpoint: Path) -> list[Any]:
    """Return transformers' outputs of each picture."""
    model = Dinov2WithRegistersModel.from_pretrained(picture_checkpoint, dtype=torch.float32)
    processor = BitImageProcessorPil.from_pretrained(picture_checkpoint)
    images = [Image.open(BytesIO(data)).convert("RGB") for data in FILES]
    values = [processor(image, return_tensors="pt")["pixel_values"] for image in images]
    with torch.inference_mode():
        return [model.eval()(own, output_hidden_states=True) for own in values]


@pytest.mark.parametrize("backend", ["onnx", "torch"])
async def test_vectors_over_http_are_transformers(
    client: Client, expected: list[Any], backend: str
) -> None:
    asked = {"inputs": list(map(element, FILES)), "layers": [0, 1, 2], "backend": backend}
    results = (await client.post("/encode", json=asked)).json()["results"]
    assert [own["size"] for own in results] == SIZES
    for own, reference in zip(results, expected, strict=True):
        states = [*reference.hidden_states[:-1], reference.last_hidden_state]
        for found, state in zip(own["embeddings"], states, strict=True):
            np.testing.assert_allclose(found, state[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(own["pooled"][2], states[2][0, 0].numpy(), atol=1e-4)
        assert own["grid"] == [2, 3]
        assert own["tokens"][:4] == ["[CLS]", "[REG 1]", "[REG 2]", "0,0"]


async def test_pictures_are_verified_and_engines_agree(client: Client) -> None:
    reply = (await client.post("/verify", json={"inputs": [element(FILES[0])]})).json()
    assert (reply["passed"], reply["inputs"]) == (True, 1)
    assert len(reply["attention"]) == 2 * 3


async def test_a_live_picture_is_verified(picture_artifact: Artifact) -> None:
    """The share is all batches: the metric counts one that passed."""
    app = create_app(Settings(verify_share=1.0), [picture_artifact])
    async with app.router.lifespan_context(app), Client(app) as client:
        verification = state_of(app).models.default.live_verification
        await client.post("/encode", json={"inputs": element(FILES[0])})
        await until(lambda: verification._comparing is not None and verification._comparing.done())
        metrics = (await client.get("/metrics")).text
        assert re.search(r'verified_batches_total{model=".+",result="passed"} 1.0', metrics)
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
