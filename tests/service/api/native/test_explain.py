"""/explain over HTTP against transformers: shares, importance of tokens, and refusals."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load
from scipy.stats import spearmanr

from model.artifact.manifest import Artifact
from service.api.wire.media import SAFETENSORS
from service.engines.contract import Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from tests.service.api.native.hooked import Heads, Hooked
from tests.service.harness import AnsweringEngine, assert_problem, serving

pytestmark = pytest.mark.anyio
PAIRS = [
    ["A man is playing a guitar.", "Someone plays an instrument, loudly."],
    ["", "the cat"],
    ["the cat sat on the mat", "the cat sat on the mat"],
]


class Oracle(Hooked):
    """Last states of transformers in float64."""

    def seen(self, text: str, *masked: int, ablated: Heads = ()) -> Any:
        """Return the states of the tokens that are not masked, `[S, H]`."""
        states = self.output(text, ablated, masked).last_hidden_state[0]
        return np.delete(states.numpy().astype(np.float64), masked, axis=0)

    def mean(self, text: str, *masked: int, ablated: Heads = ()) -> Any:
        return self.seen(text, *masked, ablated=ablated).mean(axis=0)


def cosine(one: Any, other: Any) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Oracle:
    return Oracle(small_checkpoint)


async def asked(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/explain", json=body)
    assert response.status_code == 200, response.text
    results: list[dict[str, Any]] = response.json()["results"]
    return results


async def test_it_equals_transformers(client: httpx.AsyncClient, oracle: Oracle) -> None:
    results = await asked(client, inputs=PAIRS, include=["pairs", "occlusion"])
    for (one, other), found in zip(PAIRS, results, strict=True):
        x, y = oracle.seen(one), oracle.seen(other)
        norms = np.linalg.norm(x.mean(axis=0)) * np.linalg.norm(y.mean(axis=0))
        expected = x @ y.T / (len(x) * len(y) * norms)
        np.testing.assert_allclose(found["pairs"], expected, atol=1e-5)
        similarity = cosine(x.mean(axis=0), y.mean(axis=0))
        assert found["similarity"] == pytest.approx(similarity, abs=1e-5)
        assert abs(np.sum(found["pairs"]) - found["similarity"]) < 1e-5
        assert found["completeness_error"] < 1e-5
        means = oracle.mean(one), oracle.mean(other)
        for text, mean, losses in zip(
            (one, other), reversed(means), found["occlusion"], strict=True
        ):
            without = [cosine(oracle.mean(text, i), mean) for i in range(len(losses))]
            np.testing.assert_allclose(losses, similarity - np.array(without), atol=2e-5)
    assert [text["tokens"][0] for text in results[0]["texts"]] == ["[CLS]", "[CLS]"]
    assert all(set(found["agreement"]) == {"pairs"} for found in results)


@pytest.mark.parametrize("pooling", ["cls", "max", "last"])
async def test_occlusion_of_other_poolings(
    client: httpx.AsyncClient, oracle: Oracle, pooling: str
) -> None:
    def pooled(text: str, *masked: int) -> Any:
        seen = oracle.seen(text, *masked)
        return {"cls": seen[0], "max": seen.max(axis=0), "last": seen[-1]}[pooling]

    one, other = PAIRS[0]
    (found,) = await asked(client, inputs=[[one, other]], include=["occlusion"], pooling=pooling)
    plain = cosine(pooled(one), pooled(other))
    expected = [
        plain - cosine(pooled(one, i), pooled(other)) for i in range(len(found["occlusion"][0]))
    ]
    np.testing.assert_allclose(found["occlusion"][0], expected, atol=2e-5)
    assert "pairs" not in found
    assert "agreement" not in found


async def test_what_each_head_is_worth(client: httpx.AsyncClient, oracle: Oracle) -> None:
    results = await asked(client, inputs=PAIRS, include=["heads"])
    for (one, other), found in zip(PAIRS, results, strict=True):
        similarity = cosine(oracle.mean(one), oracle.mean(other))
        expected = np.empty((2, oracle.model.config.num_attention_heads))
        for place in np.ndindex(*expected.shape):
            without = [oracle.mean(text, ablated=[place]) for text in (one, other)]
            expected[place] = similarity - cosine(*without)
        np.testing.assert_allclose(found["heads"], expected, atol=2e-5)
    assert np.ptp(results[0]["heads"]) > 1e-3
    assert "agreement" not in results[0]


async def test_company_changes_nothing(client: httpx.AsyncClient) -> None:
    every = ["pairs", "occlusion"]
    together = await asked(client, inputs=PAIRS, include=every)
    for pair, found in zip(PAIRS, together, strict=True):
        (alone,) = await asked(client, inputs=[pair], include=every)
        assert alone["texts"] == found["texts"]
        np.testing.assert_allclose(alone["pairs"], found["pairs"], atol=1e-6)
        for one, two in zip(alone["occlusion"], found["occlusion"], strict=True):
            np.testing.assert_allclose(one, two, atol=2e-6)


@pytest.mark.usefixtures("started_torch")
async def test_pytorch_answers_too(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    body = {"inputs": PAIRS[:1], "include": ["pairs", "occlusion"]}
    async with serving(artifact, onnx_engine) as client:
        onnx, torchs = [
            (await asked(client, **body, backend=name))[0] for name in ("onnx", "torch")
        ]
    np.testing.assert_allclose(torchs["pairs"], onnx["pairs"], atol=1e-5)
    for one, other in zip(torchs["occlusion"], onnx["occlusion"], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


async def test_the_binary_form_holds_the_same(client: httpx.AsyncClient) -> None:
    body = {"inputs": PAIRS, "include": ["pairs", "occlusion", "decomposition", "heads"]}
    plain = await asked(client, **body)
    response = await client.post("/explain", json=body, headers={"accept": SAFETENSORS})
    tensors = load(response.content)
    for i, found in enumerate(plain):
        np.testing.assert_allclose(tensors["similarity"][i], found["similarity"], rtol=1e-6)
        for name in ("pairs", "decomposition"):
            np.testing.assert_array_equal(tensors[f"{name}.{i}"], np.array(found[name], np.float32))
        for side, losses in zip("ab", found["occlusion"], strict=True):
            np.testing.assert_allclose(tensors[f"occlusion.{i}.{side}"], losses, rtol=1e-6)
        assert tensors["decomposition_error"][i] == pytest.approx(found["decomposition_error"])
        assert found["decomposition_error"] < 1e-4
        np.testing.assert_array_equal(tensors["heads"][i], np.array(found["heads"], np.float32))
        agreement = found["agreement"]["decomposition"]
        assert tensors["agreement.decomposition"][i] == pytest.approx(agreement)
    lengths = [len(text["tokens"]) for found in plain for text in found["texts"]]
    assert np.diff(tensors["cu_seqlens"]).tolist() == lengths


async def test_other_layers_and_the_default(client: httpx.AsyncClient, oracle: Oracle) -> None:
    (found,) = await asked(client, inputs=[PAIRS[0]], layer=0)
    assert "occlusion" not in found
    x, y = (oracle.states(text)[0].mean(dim=0).numpy() for text in PAIRS[0])
    assert found["similarity"] == pytest.approx(cosine(x, y), abs=1e-5)


async def test_a_reply_that_would_be_too_large_is_refused_beforehand(
    client: httpx.AsyncClient,
) -> None:
    pair = ["word " * 500] * 2
    response = await client.post("/explain", json={"inputs": [pair] * 40})
    problem = assert_problem(response, 413, "ask for fewer pairs")
    assert "(--max-response-bytes): one pair of texts of up to" in problem["detail"]
    assert not problem["retryable"]


SENTENCES = ["The cat sat. It didn't move! Why?", "A dog's life\nis hard. Who knows!"]


@pytest.mark.parametrize("kind", ["words", "sentences"])
async def test_spans_equal_transformers_without_all_their_tokens(
    client: httpx.AsyncClient, oracle: Oracle, kind: str
) -> None:
    body = {"inputs": [SENTENCES], "include": ["pairs", "occlusion"], "spans": kind}
    (found,) = await asked(client, **body)
    parts = [[text[s["start"] : s["end"]] for s in spans] for text, spans in spans_in(found)]
    if kind == "sentences":
        assert parts == [
            ["The cat sat.", "It didn't move!", "Why?"],
            ["A dog's life", "is hard.", "Who knows!"],
        ]
    else:
        assert parts[1] == ["A", "dog's", "life", "is", "hard", ".", "Who", "knows", "!"]
    means = [oracle.mean(text) for text in SENTENCES]
    similarity = cosine(*means)
    sums = np.sum(found["pairs"], axis=1), np.sum(found["pairs"], axis=0)
    losses, shares = [], []
    for (text, spans), other, own in zip(spans_in(found), reversed(means), sums, strict=True):
        offsets = oracle.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        for span in spans:
            tokens = [
                n for n, (a, b) in enumerate(offsets) if a < span["end"] and b > span["start"]
            ]
            assert span["tokens"] == tokens
            losses.append(similarity - cosine(oracle.mean(text, *tokens), other))
            shares.append(own[tokens].sum())
    np.testing.assert_allclose(np.concatenate(found["occlusion"]), losses, atol=2e-5)
    assert found["agreement"]["pairs"] == pytest.approx(spearmanr(shares, losses).statistic)
    assert found["computed"] == {"occlusion": len(losses)}
    assert found["partial"] is False


def spans_in(found: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return list(zip(SENTENCES, found["spans"], strict=True))


async def test_the_top_spans_have_the_largest_shares(
    client: httpx.AsyncClient, oracle: Oracle
) -> None:
    body = {"inputs": PAIRS[:1], "include": ["occlusion"]}
    (every,) = await asked(client, **body)
    (found,) = await asked(client, **body, top=3)
    x, y = (oracle.seen(text) for text in PAIRS[0])
    sums = x @ y.mean(axis=0), y @ x.mean(axis=0)
    for losses, expected, shares in zip(found["occlusion"], every["occlusion"], sums, strict=True):
        computed = [n for n, loss in enumerate(losses) if loss is not None]
        assert computed == sorted(np.argsort(-shares)[:3].tolist())
        np.testing.assert_allclose(
            [losses[n] for n in computed], [expected[n] for n in computed], atol=1e-6
        )
    assert found["computed"] == {"occlusion": 6}
    assert found["partial"] is False


async def test_what_is_computed_by_the_deadline_is_the_answer(artifact: Artifact) -> None:
    """The engine hangs after about ten occluded tokens, until the reply arrives."""
    replied, occluded = threading.Event(), []

    def answer(tasks: Sequence[Task]) -> None:
        occluded.extend(task for task in tasks if isinstance(task, TextTask) and task.unseen)
        if len(occluded) > 10:
            assert replied.wait(30)

    engine = AnsweringEngine(answer, artifact.manifest.config)
    body = {"inputs": PAIRS, "include": ["pairs", "occlusion", "decomposition", "heads"]}
    async with serving(artifact, engine, max_batch_tokens=12) as client:
        headers = {"x-request-timeout-ms": "2000"}
        reply = await client.post("/explain", json=body, headers=headers)
        replied.set()
    results = reply.json()["results"]
    assert any(found["partial"] for found in results)
    computed = 0
    for found in results:
        assert np.shape(found["pairs"]) == tuple(len(text["tokens"]) for text in found["texts"])
        assert (found["decomposition"] is None) == (found["computed"]["decomposition"] == 0)
        losses = [loss for side in found["occlusion"] for loss in side if loss is not None]
        assert len(losses) == found["computed"]["occlusion"]
        computed += len(losses)
    assert 5 <= computed <= len(occluded)


async def test_what_no_idle_service_could_do_is_refused_for_good(artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None, artifact.manifest.config)
    engine.measured = [(1, 0.2), (512, 102.4)]
    words = ["the cat " * 60, "a dog " * 60]
    async with serving(artifact, engine, max_batch_tokens=512) as client:
        for include, says in (
            (["occlusion"], "or occlude `spans`"),
            (["heads"], 'leave "heads" out of `include`'),
            (["decomposition"], 'leave "decomposition" out of `include`'),
        ):
            response = await client.post("/explain", json={"inputs": [words], "include": include})
            problem = assert_problem(response, 422, "--request-timeout-seconds")
            assert not problem["retryable"]
            assert says in problem["detail"]
            assert "one pair of texts of up to" in problem["detail"]
        response = await client.post("/explain", json={"inputs": PAIRS[1:2]})
        assert response.status_code == 200


async def test_a_decomposition_that_takes_too_much_memory_is_refused_for_good(
    artifact: Artifact,
) -> None:
    words, limit = ["the cat " * 60, "the dog"], 2**20
    async with serving(
        artifact, FakeEngine(artifact.manifest.config), max_bytes_in_flight=limit
    ) as client:
        body = {"inputs": [words], "include": ["decomposition"]}
        problem = assert_problem(
            await client.post("/explain", json=body), 413, "(--max-bytes-in-flight)"
        )
        fits = int(re.search(r"texts of up to (\d+) tokens fit", problem["detail"])[1])
        words[0] = "cat " * (fits - 2)
        assert (await client.post("/explain", json=body)).status_code == 200
    assert not problem["retryable"]


async def test_characters_of_both_sides_are_counted(
    artifact: Artifact, late_artifact: Artifact
) -> None:
    for served in (artifact, late_artifact):
        engine = FakeEngine(served.manifest.config)
        async with serving(served, engine, max_request_characters=10) as client:
            response = await client.post("/explain", json={"inputs": [["a" * 6, "b" * 5]]})
            assert_problem(response, 422, says="the request has 11 characters; at most 10")
