"""`POST /encode` with pictures alone, for a model without graphs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Pooling, TextTask
from service.inference.pictures.reader import PictureReader
from service.inference.tokenization.inputs import Picture
from tests.service.harness import Client, assert_problem, serving
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
        monkeypatch.setattr(PictureReader, "size_of", lambda *_: pytest.fail("it was opened"))
        refused = await client.post("/encode", json={"inputs": [element(FILES[0])] * 8})
    assert fits.status_code == 200
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert "56 tokens" in refused.json()["detail"]


async def test_a_model_of_pictures_has_no_vocabulary(client: Client) -> None:
    reply = await client.get("/vocabulary?index=1")
    assert reply.status_code == 422
    assert "reads pictures and has no tokenizer" in reply.text
