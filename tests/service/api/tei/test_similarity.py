"""`POST /similarity` in TEI's form."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from scipy.spatial.distance import cosine

from model.artifact.manifest import Artifact
from service.api.tei.similarity import cosines
from tests.service.harness import reserved_replies, serving, state_of
from tests.service.several import fake_of

INPUTS = {"source_sentence": "a cat", "sentences": ["a dog", "a cat", "naïve 😀"]}


def test_cosines_are_scipys() -> None:
    vectors = [np.random.default_rng(seed).standard_normal(8, np.float32) for seed in range(4)]
    expected = [1 - cosine(vectors[0], other) for other in vectors[1:]]
    np.testing.assert_allclose(cosines(vectors), expected, atol=1e-6)


@pytest.mark.anyio
async def test_scores_are_in_the_order_given(client: httpx.AsyncClient) -> None:
    answer = await client.post("/similarity", json={"inputs": INPUTS, "parameters": None})
    texts = [INPUTS["source_sentence"], *INPUTS["sentences"]]
    source, *others = (await client.post("/embed", json={"inputs": texts})).json()
    assert answer.json() == pytest.approx([np.dot(source, one) for one in others], abs=1e-5)
    assert answer.headers["x-compute-characters"] == str(sum(map(len, texts)))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"inputs": INPUTS | {"sentences": []}}, 400, "inputs.sentences: empty"),
        ({"inputs": INPUTS | {"sentences": ["a", ""]}}, 400, "inputs.sentences[1] is empty"),
        ({"inputs": INPUTS | {"source_sentence": ""}}, 400, "source_sentence[0] is empty"),
        ({"inputs": INPUTS | {"sentences": "a"}}, 422, "inputs.sentences"),
        ({"inputs": {"sentences": ["a"]}}, 422, "inputs.source_sentence"),
        ({"inputs": INPUTS | {"sentences": ["a"] * 512}}, 422, "513 inputs"),
        ({"inputs": INPUTS, "parameters": {"truncation_direction": "up"}}, 422, "direction"),
        ({"inputs": INPUTS, "parameters": {"prompt_name": "q"}}, 422, "prompt_name"),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, says: str
) -> None:
    answer = await client.post("/similarity", json=body)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.anyio
async def test_parameters_cut_texts_and_vectors_are_bounded(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four vectors of 128 numbers count among the bytes of replies, and go back."""
    inputs = INPUTS | {"sentences": ["a " * 600] * 3}
    parameters = {"truncate": False}
    async with serving(artifact, fake_of(artifact), max_response_bytes=4 * 4 * 128 + 96) as client:
        replies, sizes = state_of(client.app).replies, reserved_replies(client.app, monkeypatch)
        assert (await client.post("/similarity", json={"inputs": inputs})).status_code == 200
        assert (replies.held, sizes) == (0, [4 * 4 * 128 + 96])
        long = await client.post("/similarity", json={"inputs": inputs, "parameters": parameters})
        assert "text 1 (0 is source_sentence" in long.json()["error"]
        inputs["sentences"].append("b")
        assert (await client.post("/similarity", json={"inputs": inputs})).status_code == 413
