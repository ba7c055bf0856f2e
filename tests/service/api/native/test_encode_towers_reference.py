"""`POST /encode` with texts and pictures by a real CLIP, against transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

from model.artifact.manifest import Artifact
from service.app import create_app
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import Client
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio
FILES = [picture(0, 60, 40), picture(1, 31, 90)]
TEXTS = ["a red square", "a dog"]
ACCEPT = {"accept": "application/vnd.safetensors"}


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], clip_checkpoint: Path, anyio_backend: str
) -> AsyncIterator[Client]:
    app = create_app(Settings(), [exported(clip_checkpoint, "clip")])
    async with app.router.lifespan_context(app), Client(app) as client:
        yield client


@pytest.fixture(scope="module")
def reference(clip_checkpoint: Path) -> Any:
    """Return transformers' outputs of both texts and both pictures."""
    model = CLIPModel.from_pretrained(clip_checkpoint, dtype=torch.float32).eval()
    processor = CLIPImageProcessorPil.from_pretrained(clip_checkpoint)
    images = [Image.open(BytesIO(data)).convert("RGB") for data in FILES]
    ids = AutoTokenizer.from_pretrained(clip_checkpoint)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**ids, **processor(images, return_tensors="pt"), output_hidden_states=True)


async def test_texts_and_pictures_of_a_request_are_transformers(
    client: Client, reference: Any
) -> None:
    inputs = [element(FILES[0]), TEXTS[0], TEXTS[1], element(FILES[1])]
    asked = {"inputs": inputs, "normalize": True}
    reply = await client.post("/encode", json=asked)
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
    binary = (await client.post("/encode", json=pooled)).json()["results"]
    assert len({len(own["pooled"]) for own in binary}) == 1


async def test_token_vectors_of_different_sizes_are_no_tensor(client: Client) -> None:
    inputs = [TEXTS[0], element(FILES[0])]
    refused = await client.post("/encode", json={"inputs": inputs}, headers=ACCEPT)
    assert refused.status_code == 422
    assert "24 features in the text tower and 16 in the other" in refused.json()["detail"]
    pooled = {"inputs": inputs, "outputs": ["pooled"]}
    assert (await client.post("/encode", json=pooled, headers=ACCEPT)).status_code == 200


async def test_both_towers_are_verified_and_released_together(client: Client) -> None:
    for inputs in ([TEXTS[0]], [element(FILES[0])]):
        assert (await client.post("/verify", json={"inputs": inputs})).json()["passed"]
    mixed = await client.post("/verify", json={"inputs": [TEXTS[0], element(FILES[0])]})
    assert "inputs[1] for the other" in mixed.json()["detail"]
    state = state_of(client.app)
    names = list(state.models.readiness())
    assert names == [names[0], f"{names[0]}:vision"]
