"""Labelled spans over HTTP: forms, refusals, and the predicted bytes of a reply."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.api.tei.spans import span_bytes
from service.inference.tokenization.tokenizer import Options
from tests.service.api.tei.tasks import LABELS, TOKENS, scores_of, serving_task
from tests.service.harness import reserved_replies, state_of

pytestmark = pytest.mark.anyio
TEXTS = ["The cats of Bamberg", "", 'no \U0001f600 \x01 "quotes" \ud7ff']
MEMBERS = ["score", "label", "start", "end", "text"]


def tokens_of(artifact: Artifact, text: str) -> list[tuple[str, float]]:
    """Return each token's label and logit, without [CLS], [SEP] and label O."""
    (logits,) = scores_of(artifact, TOKENS, [text])
    best = logits[1:-1].argmax(axis=-1)
    return [
        (TOKENS.labels[label], float(row[label]))
        for label, row in zip(best, logits[1:-1], strict=True)
        if label
    ]


async def test_texts_have_lists_of_spans(artifact: Artifact) -> None:
    body = {"inputs": [[text] for text in TEXTS], "aggregation": "none", "raw_scores": True}
    async with serving_task(artifact, TOKENS) as client:
        response = await client.post("/predict", json=body)
        alone = await client.post("/predict", json=body | {"inputs": TEXTS[0]})
        joined = [
            (await client.post("/predict", json={"inputs": TEXTS[0]} | simple)).json()
            for simple in ({}, {"aggregation": "simple"})
        ]
    assert response.status_code == 200, response.text
    found = response.json()
    assert alone.json() == found[0]
    assert joined[0] == joined[1]
    assert {span["label"] for span in joined[0]} == {"X"}
    for text, of_text in zip(TEXTS, found, strict=True):
        expected = tokens_of(artifact, text)
        assert [(s["label"], pytest.approx(s["score"])) for s in of_text] == expected
        for span in of_text:
            assert list(span) == MEMBERS
            assert span["text"] == text[span["start"] : span["end"]] != ""
    assert found[1] == []


@pytest.mark.parametrize(
    ("task", "body", "says"),
    [
        (TOKENS, {"inputs": ["a", "b"]}, "inputs[0] is a pair"),
        (TOKENS, {"inputs": [["a"], ["b", "c"]]}, "inputs[1] is a pair"),
        (TOKENS, {"inputs": "a", "raw_scores": True}, 'send "aggregation": "none"'),
        (TOKENS, {"inputs": "a", "aggregation": "last"}, "aggregation: "),
        (LABELS, {"inputs": "a", "aggregation": "none"}, "this model labels whole texts"),
    ],
    ids=str,
)
async def test_what_a_model_cannot_do_is_a_422(
    artifact: Artifact, task: TaskConfig, body: dict[str, Any], says: str
) -> None:
    async with serving_task(artifact, task) as client:
        response = await client.post("/predict", json=body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    assert says in response.json()["error"]


@pytest.mark.parametrize(
    "text", ["\x01 \U0001f600 a " * 80, "cat " * 100, "unbelievable " * 60], ids=["long", "", "cut"]
)
async def test_a_reply_weighs_no_more_than_is_predicted(
    artifact: Artifact, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction is close, even if labels and characters are long in JSON."""
    task = TOKENS.model_copy(update={"labels": ("B-Ä" * 9, "B-X" * 9, "B-Y" * 9)})
    async with serving_task(artifact, task) as client:
        state, sizes = state_of(client.app), reserved_replies(client.app, monkeypatch)
        tokens = state.models.default.inference.tokenizer.tokenize([text], Options())
        response = await client.post("/predict", json={"inputs": text, "aggregation": "none"})
        size = span_bytes([text], tokens, task)
        assert (state.replies.held, sizes) == (0, [size])
    assert len(response.json()) == len(tokens[0].input_ids) - 2
    assert size / 4 < len(response.content) < size
