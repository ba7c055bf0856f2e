"""Replies of /explain as bytes, admission at once, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.native.explain import (
    explain_json,
    explain_safetensors,
    match_fields,
    matches_bytes,
    pair_fields,
    reply_bytes,
)
from service.api.native.texts import Envelope
from service.api.wire.schemas import NAMED
from service.engines.contract import Task
from service.inference.explanation.explanation import PairExplanation
from service.inference.explanation.spans import Block, Span, SpanKind
from service.inference.explanation.tower import ExplainOptions, Side
from service.inference.ranking.scorers import MatchedToken
from service.inference.tokenization.text import Text
from service.models.state import state_of
from tests.service.documented import check_documented
from tests.service.harness import CONFIG, AnsweringEngine, Client, serving, tokenized

pytestmark = pytest.mark.anyio


def enveloped(texts: Sequence[Text]) -> Envelope:
    return Envelope("a/model", "onnx", texts, pairs=True)


def in_json(texts: Sequence[Text], *pairs: PairExplanation) -> bytes:
    return b"".join(explain_json(enveloped(texts), [*map(pair_fields, pairs)]))


WANTED = {"occlusion": 80, "decomposition": 1, "heads": 8}


def test_what_was_not_asked_for_is_absent() -> None:
    texts = [tokenized(2), tokenized(3)]
    found = json.loads(in_json(texts, PairExplanation(0.5)))
    assert found["results"][0].keys() == {"similarity", "texts"}
    assert found["results"][0]["texts"][0].keys() == {"tokens", "token_ids", "offsets", "truncated"}
    assert found["usage"] == {"inputs": 1, "tokens": 5}
    assert (found["model"], found["backend"]) == ("a/model", "onnx")


@pytest.mark.parametrize("kind", ["tokens", "words"])
@pytest.mark.parametrize("length", [1, 40])
def test_a_reply_is_no_larger_than_predicted(length: int, kind: SpanKind) -> None:
    texts = [tokenized(length), tokenized(length, seed=1)]
    rng = np.random.default_rng(0)
    matrix, losses = (rng.standard_normal(n).astype(np.float32) for n in ((length,) * 2, length))
    heads = rng.standard_normal((2, 4)).astype(np.float32)
    spans = [Span(1000 + n, 1001 + n, (n,)) for n in range(length)]
    found = PairExplanation(
        1 / 3, matrix, matrix, (losses, losses), (spans, spans), kind, heads, WANTED
    )
    options = ExplainOptions(0, None, pairs=True, occlusion=True, decomposition=True, heads=True)
    options = replace(options, spans=kind)
    sides = [Side(length, length, length)] * 2
    json_size, binary_size = (
        reply_bytes(options, sides, CONFIG, binary=binary) for binary in (False, True)
    )
    assert len(in_json(texts, found)) <= json_size
    assert sum(map(len, explain_safetensors(enveloped(texts), [found]))) <= binary_size
    if length > 1:
        assert binary_size < json_size / 2, "as the error of a reply in JSON says"
    matches = [MatchedToken(i, i, 1 / 3) for i in range(length)]
    fields = match_fields(0.5, matches, mean=False)
    written = b"".join(explain_json(enveloped(texts), [fields]))
    assert len(written) <= matches_bytes(texts)


def test_a_mean_is_complete_too() -> None:
    matches = [MatchedToken(0, 0, 1.0), MatchedToken(1, 0, 0.5)]
    assert match_fields(0.75, matches, mean=True)["completeness_error"] == 0
    assert match_fields(1.0, matches, mean=False)["completeness_error"] == 0.5
    assert match_fields(-1e9, [], mean=True)["completeness_error"] == 0


def test_an_agreement_that_there_is_not_is_null_and_nan() -> None:
    texts, losses = [tokenized(2), tokenized(2)], np.ones(2, np.float32)
    spans = [Span(0, 1, (0,)), Span(2, 3, (1,))]
    shares = np.ones((2, 2), np.float32)
    found = [PairExplanation(0.5, shares, None, (losses, losses), (spans, spans))]
    read = json.loads(in_json(texts, *found))
    assert read["results"][0]["agreement"] == {"pairs": None}
    tensors = load(b"".join(explain_safetensors(enveloped(texts), found)))
    assert np.isnan(tensors["agreement.pairs"]).all()


def test_values_that_were_not_computed_are_null_and_nan() -> None:
    texts = [tokenized(2), tokenized(1)]
    spans = [Span(0, 1, (0, 1))], [Span(0, 1, (0,))]
    nothing = np.full((2, 1), np.nan, np.float32)
    losses = np.array([0.25], np.float32), np.array([np.nan], np.float32)
    heads = np.array([[0.5, np.nan]], np.float32)
    wanted = {"occlusion": 2, "decomposition": 1, "heads": 2}
    shares = np.ones((2, 1), np.float32)
    found = PairExplanation(0.5, shares, nothing, losses, spans, "words", heads, wanted)
    reply = json.loads(in_json(texts, found))
    check_documented("ExplainReply", reply)
    (read,) = reply["results"]
    assert read.keys() == NAMED["ExplainResult"]["properties"].keys() - {"matches"}
    assert read["decomposition"] is read["decomposition_error"] is None
    assert read["occlusion"] == [[0.25], [None]]
    assert read["heads"] == [[0.5, None]]
    assert read["partial"] is True
    assert read["computed"] == {"occlusion": 1, "decomposition": 0, "heads": 1}
    assert read["spans"] == [
        [{"start": 0, "end": 1, "tokens": [0, 1]}],
        [{"start": 0, "end": 1, "tokens": [0]}],
    ]
    content = b"".join(explain_safetensors(enveloped(texts), [found]))
    tensors = load(content)
    assert np.isnan(tensors["decomposition.0"]).all()
    assert np.isnan(tensors["decomposition_error"]).all()
    assert tensors["occlusion.0.a"].tolist() == [0.25]
    assert np.isnan(tensors["occlusion.0.b"]).all()
    np.testing.assert_array_equal(tensors["heads"], [[[0.5, np.nan]]])
    assert tensors["partial"].tolist() == [1]
    assert {name: tensors[f"computed.{name}"].tolist() for name in wanted} == {
        "occlusion": [1],
        "decomposition": [0],
        "heads": [1],
    }
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["spans"]) == [read["spans"]]


def test_blocks_of_a_picture_are_what_is_documented() -> None:
    spans = [Span(0, 0, (0,))], [Block((0, 1), (2, 4), (3, 4))]
    losses = np.array([0.25], np.float32), np.array([0.5], np.float32)
    found = PairExplanation(0.5, None, None, losses, spans, wanted={"occlusion": 2})
    content = in_json([tokenized(1)] * 2, found)
    check_documented("ExplainReply", json.loads(content))
    (result,) = json.loads(content)["results"]
    assert [span for spans in result["spans"] for span in spans] == [
        {"start": 0, "end": 0, "tokens": [0]},
        {"rows": [0, 1], "columns": [2, 4], "tokens": [3, 4]},
    ]


WORDS = " ".join(["cat"] * 18)
BODY = {"inputs": [[WORDS, WORDS]], "include": ["occlusion"]}
TOKENS = 2 * 20 + 2 * 20 * 20
"""Tokens of an explanation: the vectors of two texts of 20 tokens, and a pass for each token."""


class Held(AnsweringEngine):
    """An engine whose rate was measured, and whose batches wait until it is let go."""

    def __init__(self, artifact: Artifact, seconds: float, batches: int = 0) -> None:
        """Take the seconds of a whole explanation alone, and how many batches do not wait."""
        self.going, self.free = threading.Event(), batches
        super().__init__(self.wait, artifact.manifest.config)
        self.measured = [(1, seconds / TOKENS), (512, 512 * seconds / TOKENS)]

    def wait(self, _: Sequence[Task]) -> None:
        assert self.batches <= self.free or self.going.wait(60)


async def at_once(client: Client, engine: Held, requests: int) -> list[httpx.Response]:
    """Send requests, and let the engine go once all are admitted or refused."""
    waiting = [asyncio.create_task(client.post("/explain", json=BODY)) for _ in range(requests)]
    engines = state_of(client.app).models.default.inference.engines
    lane = engines.default.lanes["attention"]
    async with asyncio.timeout(60):
        while len(lane.pending.open) + sum(task.done() for task in waiting) < requests:
            await asyncio.sleep(0.001)
    engine.going.set()
    return [await task for task in waiting]


@pytest.mark.parametrize(
    ("seconds", "admitted"),
    [(2.0, 8), (16.0, 3), (25.0, 2), (80.0, 1)],
    ids=["all fit", "three have half of it", "two do", "one is cut even alone"],
)
async def test_of_a_fresh_service_as_many_as_have_time_for_half_are_admitted(
    artifact: Artifact, seconds: float, admitted: int
) -> None:
    engine = Held(artifact, seconds)
    async with serving(artifact, engine, queue_target_seconds=60.0) as client:
        replies = await at_once(client, engine, 8)
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses == [200] * admitted + [429] * (8 - admitted)
    reported = [int(reply.headers["retry-after"]) for reply in replies if reply.status_code == 429]
    assert all(10 <= seconds <= 62 for seconds in reported), reported


async def test_one_that_an_idle_service_cuts_is_admitted_and_answered_in_part(
    artifact: Artifact,
) -> None:
    """A 429 that can never succeed helps nobody."""
    engine = Held(artifact, 4.0, batches=3)
    async with serving(artifact, engine, max_batch_tokens=64) as client:
        headers = {"x-request-timeout-ms": "2000"}
        reply = await client.post("/explain", json=BODY, headers=headers)
        engine.going.set()
    assert reply.status_code == 200, reply.text
    (found,) = reply.json()["results"]
    assert [len(text["tokens"]) for text in found["texts"]] == [20, 20]
    assert found["partial"]
    assert 0 < found["computed"]["occlusion"] < 40
