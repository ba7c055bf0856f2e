"""Requests, replies and errors in vLLM's form; scores against sentence-transformers."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from service.api.messages import MessagesRequest
from service.api.vllm import FORM_FIELDS
from tests.model.late_checkpoints import DOCUMENTS
from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.api.tei.tasks import LABELS, RANKS, TOKENS, scores_of, serving_task
from tests.service.harness import Client, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


POOLED = ["What is Deep Learning?", "naïve café", "a"]


async def pooled(client: Client, given: Any, **fields: Any) -> list[np.ndarray]:
    """Check the form of a reply, and return the data of each text."""
    answer = await client.post("/pooling", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"id", "object", "created", "model", "data", "usage"}
    assert reply["id"] == f"pooling-{answer.headers['x-request-id']}"
    assert reply["usage"]["prompt_tokens"] == int(answer.headers["x-compute-tokens"])
    assert [one["index"] for one in reply["data"]] == list(range(len(reply["data"])))
    assert all(one.keys() == {"index", "object", "data"} for one in reply["data"])
    assert {one["object"] for one in reply["data"]} == {"pooling"}
    return [
        np.frombuffer(base64.b64decode(one["data"]), "<f4")
        if isinstance(one["data"], str)
        else np.array(one["data"], np.float32)
        for one in reply["data"]
    ]


async def test_vectors_of_texts_and_tokens(client: Client, small_checkpoint: Path) -> None:
    """A vector of each text unless tokens are asked for; unit vectors only where asked or named."""
    model = SentenceTransformer(str(small_checkpoint), device="cpu")
    vectors = model.encode(POOLED)
    tokens = [one.numpy() for one in model.encode(POOLED, output_value="token_embeddings")]
    found = await pooled(client, POOLED)
    np.testing.assert_allclose(found, vectors, atol=2e-5)
    unit = await pooled(client, POOLED, task="embed", use_activation=True)
    np.testing.assert_allclose(unit, model.encode(POOLED, normalize_embeddings=True), atol=2e-5)
    flat = await pooled(client, POOLED, task="token_embed", encoding_format="base64")
    units = await pooled(client, POOLED, task="token_embed", use_activation=True)
    for matrix, one, other in zip(tokens, flat, units, strict=True):
        np.testing.assert_allclose(one.reshape(matrix.shape), matrix, atol=5e-5)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        np.testing.assert_allclose(other, matrix / lengths, atol=2e-5)


async def test_token_ids_and_cut_texts(client: Client, small_checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    ids = tokenizer(POOLED)["input_ids"]
    found = await pooled(client, POOLED)
    np.testing.assert_allclose(await pooled(client, ids), found, atol=1e-5)
    np.testing.assert_allclose(await pooled(client, ids[0]), found[:1], atol=1e-5)
    cut = tokenizer.decode(ids[0][1:4])
    same = await pooled(client, POOLED[0], truncate_prompt_tokens=5)
    np.testing.assert_allclose(same, await pooled(client, cut), atol=1e-5)


@pytest.mark.parametrize("task", [LABELS, RANKS, TOKENS])
async def test_labels_of_texts_and_tokens(artifact: Artifact, task: Any) -> None:
    """Softmax of several, sigmoid of one, logits without activation."""
    logits = [torch.from_numpy(one) for one in scores_of(artifact, task, POOLED)]
    activation = torch.sigmoid if task.outputs == 1 else lambda x: torch.softmax(x, dim=-1)
    async with serving_task(artifact, task) as client:
        found = await pooled(client, POOLED)
        raw = await pooled(client, POOLED, use_activation=False)
    for one, other, expected in zip(found, raw, logits, strict=True):
        np.testing.assert_allclose(one, activation(expected).numpy(), atol=1e-6)
        np.testing.assert_allclose(other, expected.numpy(), atol=1e-6)


async def test_vectors_of_a_late_interaction_model(
    late_artifact: Artifact, late_checkpoint: Path
) -> None:
    """The reply has unit vectors of all tokens; a document's vectors in MaxSim are among them."""
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    expected = reference.encode_document(DOCUMENTS[:1])[0]
    prompt = reference.prompts["document"]
    async with serving(late_artifact) as client:
        (found,) = await pooled(client, prompt + DOCUMENTS[0])
        refused = await client.post("/pooling", json={"input": "a", "use_activation": False})
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    nearest = (np.asarray(expected) @ found.T).max(axis=1)
    np.testing.assert_allclose(nearest, 1, atol=1e-4)
    assert refused.status_code == 400


FITTING = [text for text in TEXTS if len(text) < 60]
QUERIES = [QUERY, "x", "the the cat", "a", "b c"]


async def scores(client: Client, first: Any, second: Any, **fields: Any) -> list[float]:
    """Return the scores of a reply, whose pairs are in the order of the request."""
    answer = await client.post("/score", json={"text_1": first, "text_2": second, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["score"] for one in data]


async def test_a_cross_encoder(ranking: Client, ranker: Ranker) -> None:
    """A text is paired with many, or each with its own; without activation scores are logits."""
    one = await scores(ranking, QUERY, FITTING)
    assert one == pytest.approx(ranker.scores(QUERY, FITTING).tolist(), abs=1e-4)
    each = list(zip(QUERIES, FITTING, strict=True))
    found = await scores(ranking, QUERIES, FITTING, use_activation=False)
    assert found == pytest.approx(ranker.logits(each).tolist(), abs=1e-4)
    assert await scores(ranking, [QUERY], FITTING[0]) == pytest.approx(one[:1], abs=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
async def test_pairs_are_cut_to_the_length_asked_for(
    ranking: Client, cross_checkpoint: Path, side: str
) -> None:
    """As transformers does: the longer of both gives way first."""
    for asked, most in ((9, 9), (-1, 36)):
        model = CrossEncoder(
            str(cross_checkpoint),
            device="cpu",
            max_length=most,
            tokenizer_kwargs={"truncation_side": side},
        )
        fields = {"truncate_prompt_tokens": asked, "truncation_side": side}
        found = await scores(ranking, QUERY, TEXTS, **fields)
        expected = Ranker(model).scores(QUERY, TEXTS)
        assert found == pytest.approx(expected.tolist(), abs=1e-4)


async def test_a_model_of_vectors(client: Client, small_checkpoint: Path) -> None:
    """The cosine, as vLLM's own: also where texts are cut."""
    first, second = ["What is it?", "word " * 20], ["It is a cat.", "something else entirely"]
    for asked in (None, 7):
        model = SentenceTransformer(str(small_checkpoint), device="cpu")
        model.max_seq_length = asked or 512
        one, other = model.encode(first), model.encode(second)
        expected = model.similarity(one, other).numpy()
        found = await scores(client, first, second, truncate_prompt_tokens=asked)
        np.testing.assert_allclose(found, np.diag(expected), atol=2e-5)
        found = await scores(client, first[1], second, truncate_prompt_tokens=asked)
        np.testing.assert_allclose(found, expected[1], atol=2e-5)


@pytest.fixture(scope="module")
async def late(late_artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Return a late-interaction model."""
    async with serving(late_artifact) as client:
        yield client


async def test_a_late_interaction_model(late: Client, late_checkpoint: Path) -> None:
    """MaxSim, also of queries that come twice and out of turn."""
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    queries = ["the cat", "a b", "the cat", "x", "a b"]
    vectors = reference.encode_query(queries), reference.encode_document(DOCUMENTS)
    expected = reference.similarity(*vectors).numpy()
    found = await scores(late, queries, DOCUMENTS)
    assert found == pytest.approx(np.diag(expected).tolist(), abs=1e-4)
    assert await scores(late, "a b", DOCUMENTS) == pytest.approx(expected[1].tolist(), abs=1e-4)


BODY = {"text_1": "what is it", "text_2": ["a", "b c"]}


async def test_the_reply_has_vllms_form(client: Client) -> None:
    """At both paths, under each of its names; in the order of the request, not sorted."""
    answer = await client.post("/score", json=BODY | {"model": "other", "user": "u"})
    reply = answer.json()
    assert reply.keys() - {"warnings"} == {"id", "object", "created", "model", "data", "usage"}
    assert reply["id"] == f"score-{answer.headers['x-request-id']}"
    assert (reply["object"], reply["model"]) == ("list", answer.headers["x-model"])
    assert abs(reply["created"] - time.time()) < 60
    tokens = int(answer.headers["x-compute-tokens"])
    assert reply["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    assert [one["index"] for one in reply["data"]] == [0, 1]
    assert all(one.keys() == {"index", "object", "score"} for one in reply["data"])
    for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        body = {first: BODY["text_1"], second: BODY["text_2"]}
        assert (await client.post("/v1/score", json=body)).json()["data"] == reply["data"]


async def test_the_first_model_that_scores_answers(artifact: Artifact) -> None:
    artifacts = [variant(artifact, "labels", 8, LABELS), variant(artifact, "vectors", 8)]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        answer = await client.post("/score", json=BODY)
        assert (answer.status_code, answer.json()["model"]) == (200, "vectors")
        unknown = await client.post("/score", json=BODY | {"model": "c"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundError")


async def test_each_side_may_be_as_long_as_a_request(artifact: Artifact) -> None:
    for task in (None, RANKS):
        async with serving_task(artifact, task, max_client_batch_size=2) as client:
            assert (await client.post("/score", json=BODY)).status_code == 200
            refused = await client.post("/score", json=BODY | {"text_2": ["a"] * 3})
            assert refused.status_code == 400


PATHS = ["/rerank", "/v1/rerank", "/v2/rerank"]
RERANK_BODY: dict[str, Any] = {"query": QUERY, "documents": TEXTS, "truncate_prompt_tokens": -1}


@pytest.mark.parametrize("path", PATHS)
async def test_texts_that_are_too_long_are_refused_as_vllm_does(ranking: Client, path: str) -> None:
    """Errors have vLLM's form; `truncation_side` selects this form, `user` does not."""
    body = {"query": QUERY, "documents": ["q " * 600], "truncation_side": "right"}
    refused = await ranking.post(path, json=body)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestError")
    body = {"query": QUERY, "documents": ["q " * 600], "truncation_side": None, "user": "u"}
    assert (await ranking.post(path, json=body)).status_code == 200


@pytest.mark.parametrize("name", sorted(FORM_FIELDS))
async def test_each_field_of_vllm_alone_tells_the_form(ranking: Client, name: str) -> None:
    """Unsupported fields are refused in vLLM's form; fields without effect are ignored."""
    reply = await ranking.post("/rerank", json=RERANK_BODY | {name: "x" * 2000})
    if reply.status_code == 200:
        assert reply.json()["results"][0]["document"].keys() == {"text"}
        assert name in ("request_id", "cache_salt")
    else:
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "BadRequestError")
        assert name in reply.json()["error"]["message"]


DATA = "data:image/png;base64,QQ=="
IMAGE = {"type": "image_url", "image_url": {"url": DATA}}
TEXT = {"type": "text", "text": "a"}


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def test_a_message_is_an_input() -> None:
    for content in ("a", [TEXT]):
        assert MessagesRequest.model_validate({"messages": user(content)}).given == ["a"]
    detailed = {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}}
    for part in (IMAGE, detailed):
        (picture,) = MessagesRequest.model_validate({"messages": user([part])}).given
        assert picture.source == DATA  # type: ignore[union-attr]
    null = {"messages": None, "input": "b"}
    assert MessagesRequest.model_validate(null).given == ["b"]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (user([IMAGE, TEXT]), "content has several parts, and one vector is of one"),
        ([*user("a"), *user("b")], "messages are several"),
        ([{"role": "system", "content": "a"}], r"messages\[0\] is not"),
        (user("a", name="b"), r"messages\[0\] is not"),
        ([], r"messages\[0\] is not"),
        (user([{"type": "video_url", "video_url": {"url": DATA}}]), r"content\[0\] is neither"),
        (user([{**IMAGE, "uuid": "1"}]), r"content\[0\] is neither"),
        (user([{"type": "image_url", "image_url": {"url": "QQ=="}}]), "url: a data URL"),
        (
            user([{"type": "image_url", "image_url": {"url": DATA, "detail": "high"}}]),
            "options that change nothing",
        ),
    ],
)
def test_other_messages_are_refused(messages: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MessagesRequest.model_validate({"messages": messages})


def test_either_input_or_messages() -> None:
    with pytest.raises(ValueError, match="leave out `input`"):
        MessagesRequest.model_validate({"messages": user("a"), "input": "b"})
    with pytest.raises(ValueError, match=r"input\n +Field required"):
        MessagesRequest.model_validate({})
    assert MessagesRequest.model_json_schema()["required"] == []
