"""`POST /classify` in Infinity's form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from model.artifact.manifest import Artifact
from service.api.tei.predict import PREDICTION_BYTES
from tests.service.api.tei.tasks import LABELS, RANKS, scores_of, serving_task

pytestmark = pytest.mark.anyio
TEXTS = ["what is it", "", "nothing"]


async def test_labels_are_sorted_as_transformers_pipeline_does(artifact: Artifact) -> None:
    """Softmax of several labels, whatever `raw_scores` says; a text that is too long is cut."""
    logits = torch.from_numpy(np.stack(scores_of(artifact, LABELS, TEXTS)))
    scores = torch.softmax(logits, dim=1).numpy()
    async with serving_task(artifact, LABELS) as client:
        body = {"input": [*TEXTS, "a " * 2000], "model": "default/not-specified"}
        answer = await client.post("/classify", json=body)
        raw = await client.post("/classify", json=body | {"raw_scores": True})
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"object", "data", "model", "usage", "id", "created"}
    assert (reply["object"], reply["model"], len(reply["data"])) == ("classify", "small", 4)
    assert reply["usage"]["total_tokens"] == int(answer.headers["x-compute-tokens"])
    assert raw.json()["data"] == reply["data"]
    for found, expected in zip(reply["data"], scores, strict=False):
        order = np.argsort(-expected)
        assert [one["label"] for one in found] == [LABELS.labels[index] for index in order]
        np.testing.assert_allclose([one["score"] for one in found], expected[order], atol=1e-6)


async def test_one_label_is_a_sigmoid(artifact: Artifact) -> None:
    (logits,) = scores_of(artifact, RANKS, ["a"])
    async with serving_task(artifact, RANKS) as client:
        (((one,),)) = (await client.post("/classify", json={"input": ["a"]})).json()["data"]
    assert one["score"] == pytest.approx(torch.sigmoid(torch.tensor(float(logits[0]))).item())


async def test_refusals(artifact: Artifact) -> None:
    async with serving_task(artifact, None) as client:
        nothing = await client.post("/classify", json={"input": ["a"]})
        assert (nothing.status_code, nothing.json().keys()) == (400, {"error"})
        for given in ("a", [], [1]):
            assert (await client.post("/classify", json={"input": given})).status_code == 422
    labels = sum(PREDICTION_BYTES + 2 * len(label) for label in LABELS.labels)
    for limit, status in ((2 * labels, 200), (2 * labels - 1, 413)):
        async with serving_task(artifact, LABELS, max_response_bytes=limit) as client:
            answer = await client.post("/classify", json={"input": ["a", "b"]})
            assert answer.status_code == status
