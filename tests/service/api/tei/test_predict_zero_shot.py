"""`POST /predict` with labels of the request, against transformers' `logits_per_image`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit, softmax
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from tests.service.harness import serving
from tests.service.pictures import element, picture

pytestmark = pytest.mark.anyio
FILES = [picture(seed=1, width=50, height=40), picture(seed=2, width=33, height=60)]
LABELS = ["two cats", "a dog", "3 boxes"]
BODY = {"inputs": [element(file) for file in FILES], "labels": LABELS}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(f"{request.param}_checkpoint")
    return folder


@pytest.fixture(scope="module")
async def client(
    exported: Callable[..., Artifact], checkpoint: Path, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(exported(checkpoint, checkpoint.name)) as client:
        yield client


def logits_of(folder: Path, template: str) -> Any:
    """Return transformers' logits `[B, C]`."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor([Image.open(BytesIO(f)) for f in FILES], return_tensors="pt")
    tokenizer, texts = AutoTokenizer.from_pretrained(folder), map(template.format, LABELS)
    if model.config.model_type == "siglip":
        whole = {"padding": "max_length", "max_length": 20, "truncation": True}
        ids = tokenizer([*texts], return_tensors="pt", **whole).input_ids
        with torch.no_grad():
            return model(input_ids=ids, **pixels).logits_per_image.numpy()
    rows = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=20).input_ids
        with torch.no_grad():
            rows.append(model(input_ids=ids, **pixels).logits_per_image.numpy())
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("template", [None, "{}!"])
async def test_scores_are_transformers(
    client: httpx.AsyncClient, checkpoint: Path, template: str | None
) -> None:
    logits = logits_of(checkpoint, template or "This is {}.")
    body = BODY | ({"template": template or "This is {}."})
    scores = softmax(logits, axis=1) if checkpoint.name == "clip" else expit(logits)
    for raw, expected in ((True, logits), (False, scores)):
        reply = await client.post("/predict", json=body | {"raw_scores": raw})
        assert reply.status_code == 200, reply.text
        for row, found in zip(expected, reply.json(), strict=True):
            assert [label["label"] for label in found] == [LABELS[n] for n in np.argsort(-row)]
            np.testing.assert_allclose(
                [label["score"] for label in found], np.sort(row)[::-1], atol=1e-4
            )


async def test_a_form_is_a_batch(client: httpx.AsyncClient) -> None:
    files: list[Any] = [("inputs", (f"{n}.png", file)) for n, file in enumerate(FILES)]
    files.append(("labels", (None, json.dumps(LABELS))))
    form = await client.post("/predict", files=files)
    batch = await client.post("/predict", json=BODY)
    assert form.status_code == 200
    for own, expected in zip(form.json(), batch.json(), strict=True):
        scores = {label["label"]: label["score"] for label in expected}
        assert {label["label"]: label["score"] for label in own} == pytest.approx(scores, abs=1e-5)


async def test_one_picture_and_its_best_label(client: httpx.AsyncClient) -> None:
    batch = await client.post("/predict", json=BODY)
    alone = await client.post("/predict", json=BODY | {"inputs": BODY["inputs"][0], "top_k": 1})
    (best,) = alone.json()
    assert best["label"] == batch.json()[0][0]["label"]
    assert best["score"] == pytest.approx(batch.json()[0][0]["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": None}, "labels: this model has none of its own: name those to choose from"),
        ({"inputs": "a text"}, "inputs[0] is no picture: `labels` are for pictures"),
        ({"template": "a photo"}, "template: put {} once, where the label goes"),
        ({"aggregation": "first"}, "aggregation applies to token labels, not to `labels`"),
        ({"labels": ["x" * 50], "truncate": False}, "labels[0] has"),
    ],
    ids=str,
)
async def test_what_is_refused(
    client: httpx.AsyncClient, changes: dict[str, Any], says: str
) -> None:
    reply = await client.post("/predict", json=BODY | changes)
    assert reply.status_code == 422, reply.text
    assert says in reply.json()["error"]


async def test_labels_are_for_two_towers(small_artifact_client: httpx.AsyncClient) -> None:
    for fields, says in (
        ({"labels": ["a"]}, "labels: this model has labels of its own, or none: leave them out"),
        ({"template": "{}"}, "template is for `labels`: add them, or leave it out"),
    ):
        reply = await small_artifact_client.post("/predict", json={"inputs": "a"} | fields)
        assert reply.status_code == 422
        assert says in reply.json()["error"]


@pytest.fixture
async def small_artifact_client(artifact: Artifact) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact) as client:
        yield client
