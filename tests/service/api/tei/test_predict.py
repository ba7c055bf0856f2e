"""`POST /predict` in TEI's forms: one text, pairs, batches, softmax and sigmoid, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from model.artifact.manifest import Artifact
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, scores_of, serving_task

pytestmark = pytest.mark.anyio
TEXTS: list[Any] = ["a text", ("a text", "its pair"), "another"]


def labelled(logits: Any, scores: Any) -> list[dict[str, Any]]:
    order = np.argsort(-logits)
    return [
        {"label": LABELS.labels[i], "score": pytest.approx(float(scores[i]), abs=1e-6)}
        for i in order
    ]


async def test_a_batch_is_sorted_softmax_of_texts_and_pairs(artifact: Artifact) -> None:
    expected = [labelled(row, softmax(row)) for row in scores_of(artifact, LABELS, TEXTS)]
    batch = [["a text"], ["a text", "its pair"], ["another"]]
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": batch})
    assert response.status_code == 200
    assert response.json() == expected
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["x-compute-tokens"]) > 0


@pytest.mark.parametrize(
    ("inputs", "text"),
    [("a text", "a text"), (["a text"], "a text"), (["a text", "its pair"], TEXTS[1])],
)
async def test_one_text_or_pair_is_answered_alone(
    artifact: Artifact, inputs: Any, text: Any
) -> None:
    (row,) = scores_of(artifact, LABELS, [text])
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": inputs})
        raw = await client.post("/predict", json={"inputs": inputs, "raw_scores": True})
    assert response.json() == labelled(row, softmax(row))
    assert raw.json() == labelled(row, row)


async def test_one_label_is_a_sigmoid(artifact: Artifact) -> None:
    (row,) = scores_of(artifact, RANKS, ["a text"])
    async with serving_task(artifact, RANKS) as client:
        (found,) = (await client.post("/predict", json={"inputs": "a text"})).json()
    assert found == {"label": "LABEL_0", "score": pytest.approx(float(expit(row[0])), abs=1e-6)}


@pytest.mark.parametrize(
    "inputs", [[], ["a", "b", "c"], [["a", "b", "c"]], [[]], [["a"], "b"], ["a", 1], 1, None, {}]
)
async def test_other_forms_are_refused(artifact: Artifact, inputs: Any) -> None:
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": inputs})
    assert response.status_code == 422
    assert response.json().keys() == {"error", "error_type"}
    assert response.json()["error"].startswith("inputs: ")
    assert response.json()["error_type"] == "Validation"


@pytest.mark.parametrize(
    ("task", "says"), [(None, "no task head"), (SPARSE, "a task head for sparse vectors")]
)
async def test_a_model_without_labels_is_a_424(artifact: Artifact, task: Any, says: str) -> None:
    async with serving_task(artifact, task) as client:
        response = await client.post("/predict", json={"inputs": "a"})
    assert response.status_code == 424
    assert response.json()["error_type"] == "Backend"
    assert response.json()["error"].startswith(f"small has {says}: serve a classifier")


@pytest.mark.parametrize("inputs", ["", [""], ["", ""], [["a"], ["", ""]]])
async def test_empty_texts_are_teis_400(artifact: Artifact, inputs: Any) -> None:
    async with serving_task(artifact, LABELS) as client:
        response = await client.post("/predict", json={"inputs": inputs})
        half = await client.post("/predict", json={"inputs": ["", "b"]})
    assert (response.status_code, response.json()["error_type"]) == (400, "Empty")
    assert half.status_code == 200


async def test_a_long_text_is_cut_by_the_setting_or_on_request(artifact: Artifact) -> None:
    body = {"inputs": "a " * 600}
    async with serving_task(artifact, LABELS) as client:
        cut_by_default = await client.post("/predict", json=body)
        refused = await client.post("/predict", json=body | {"truncate": False})
    async with serving_task(artifact, LABELS, auto_truncate=False) as client:
        null = await client.post("/predict", json=body | {"truncate": None})
        cut = await client.post("/predict", json=body | {"truncate": True})
        left = {"truncate": True, "truncation_direction": "Left", "inputs": "b " + body["inputs"]}
        right = left | {"truncation_direction": "Right"}
        sides = [(await client.post("/predict", json=each)).json() for each in (left, right)]
    assert refused.status_code == null.status_code == 422
    assert refused.json()["error_type"] == "Tokenizer"
    assert cut.status_code == 200
    assert cut.json() == cut_by_default.json()
    assert sides[0] == cut.json() != sides[1]
