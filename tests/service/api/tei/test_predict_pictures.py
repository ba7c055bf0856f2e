"""`POST /predict` of an image classifier against transformers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import softmax
from transformers import (
    AutoImageProcessor,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
)

from model.artifact.manifest import Artifact
from tests.model.families.parity import saved
from tests.model.picture_checkpoints import PROCESSOR
from tests.model.tower_checkpoints import VISION
from tests.service.harness import serving
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio
FILES = [picture(seed=1, width=50, height=40), picture(seed=2, width=33, height=60)]
NAMES = {0: "cat", 1: "dog", 2: "fox"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a DeiT with a class token and a distillation token, whose logits are a mean."""
    config = DeiTConfig(**VISION, id2label=NAMES)
    folder = saved(DeiTForImageClassificationWithTeacher(config), tmp_path_factory.mktemp("deit"))
    processor = PROCESSOR | {"crop_size": {"height": 28, "width": 28}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(checkpoint, "deit")) as client:
        yield client


async def test_labels_are_transformers(client: httpx.AsyncClient, checkpoint: Path) -> None:
    model = DeiTForImageClassificationWithTeacher.from_pretrained(checkpoint).eval()
    processor = AutoImageProcessor.from_pretrained(checkpoint, backend="pil")
    with torch.no_grad():
        pixels = processor([Image.open(BytesIO(f)) for f in FILES], return_tensors="pt")
        logits = model(**pixels).logits.numpy()
    body = {"inputs": [element(file) for file in FILES]}
    for raw, expected in ((True, logits), (False, softmax(logits, axis=1))):
        reply = await client.post("/predict", json=body | {"raw_scores": raw})
        assert reply.status_code == 200, reply.text
        for row, found in zip(expected, reply.json(), strict=True):
            assert [label["label"] for label in found] == [NAMES[n] for n in np.argsort(-row)]
            scores = [label["score"] for label in found]
            np.testing.assert_allclose(scores, np.sort(row)[::-1], atol=1e-4)
    best = await client.post("/predict", json={"inputs": body["inputs"][0], "top_k": 1})
    assert best.json() == [reply.json()[0][0]]


async def test_what_is_refused(client: httpx.AsyncClient) -> None:
    for body, says in (
        ({"inputs": "a text"}, "inputs[0] is a text, and the model reads pictures"),
        (
            {"inputs": element(FILES[0]), "labels": ["a"]},
            "labels: this model has labels",
        ),
        ({"inputs": {"image": "%"}}, "inputs.image is not base64"),
    ):
        reply = await client.post("/predict", json=body)
        assert reply.status_code == 422, reply.text
        assert says in reply.json()["error"]
