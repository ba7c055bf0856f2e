"""`POST /attention`: its numbers, its limits, its failures, whole and streamed."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import Artifact
from service.api.native.attention.maps import WHOLE_BYTES
from service.api.wire.media import JSON, SAFETENSORS, Part, Unwritten
from service.api.wire.route import PartsResponse
from service.engines.contract import MapsTask, Output, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.http.exchange import Turns
from service.inference.timings import Timings
from service.models.state import state_of
from tests.service import plain
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    assert_problem,
    exchange,
    listening,
    serving,
)
from tests.service.with_targets import with_decoder

pytestmark = pytest.mark.anyio
BINARY = {"accept": SAFETENSORS}
TEXTS = ["one [SEP] two", "", "because it was too tired to cross the street"]
EVERYTHING = {
    "include": ["weights", "stats", "rollout", "norms", "norm_rollout"],
    "layers": [-1, 0],
    "heads": [1, 0],
    "ablate": [{"layer": 0, "head": -1}, {"layer": 1, "head": 0}],
}


async def test_the_shift_is_of_the_checkpoints_own_pooling(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    sentence = artifact.manifest.sentence.model_copy(
        update={"pooling": "max", "prompts": {"query": "find: "}, "include_prompt": False}
    )
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    body = {"inputs": "the street", "prompt_name": "query", "ablate": [{"layer": 0, "head": 0}]}
    async with serving(dataclasses.replace(artifact, manifest=manifest), onnx_engine) as client:
        reply = (await client.post("/attention", json=body)).json()
    (result,) = reply["results"]
    ids, segments = np.array(result["token_ids"]), np.array(result["segment_ids"])
    tasks = [TextTask(ids, segments, (2,), None, ablated) for ablated in [((0, 0),), ()]]
    states = [output.hidden[0] for output in onnx_engine.run(tasks)]
    vectors = [array[3:].max(axis=0) for array in states]  # [CLS] find : are left out
    assert result["pooled_shift"] == pytest.approx(plain.turned(*vectors), abs=1e-6)


def random_body(chance: random.Random) -> dict[str, Any]:
    words = ["a", "b", "street", "tired", "it"]
    body: dict[str, Any] = {
        "inputs": [" ".join(chance.choices(words, k=chance.randint(0, 30))) for _ in range(3)],
        "include": chance.sample(
            ["weights", "stats", "rollout", "norms", "norm_rollout"], chance.randint(1, 3)
        ),
        "layers": chance.choice([None, [1], [1, 0]]),
        "heads": chance.choice([None, [0], [1, 0]]),
    }
    if "weights" in body["include"] and chance.random() < 0.4:
        body["top_k"] = chance.randint(1, 40)
    if chance.random() < 0.6:
        heads = [{"layer": layer, "head": head} for layer in (0, 1) for head in (0, 1)]
        body["ablate"] = chance.sample(heads, chance.randint(1, 4))
    if chance.random() < 0.3:
        body["targets"] = [" ".join(chance.choices(words, k=chance.randint(0, 20)))] * 3
        body["maps"] = ["encoder", *chance.sample(["decoder", "cross"], chance.randint(0, 2))]
        body["include"].append("logprobs")
    return body


async def test_requests_in_company_do_not_mix(artifact: Artifact) -> None:
    chance = random.Random(0)
    asked = [(random_body(chance), chance.choice([{}, BINARY])) for _ in range(120)]
    engine = FakeEngine(CONFIG, batch_seconds=0.001, concurrency=2)
    async with serving(with_decoder(artifact), engine) as client:

        async def ask(body: dict[str, Any], headers: dict[str, str]) -> bytes:
            response = await client.post("/attention", json=body, headers=headers)
            assert response.status_code == 200, response.text
            return response.content

        alone = [await ask(*one) for one in asked]
        together = await asyncio.gather(*(ask(*one) for one in asked))
    assert together == alone
    assert len(set(alone)) > 110


# ── limits ─────────────────────────────────────────────────────────────────────────────────

TEN_TOKENS = "one two three four five six seven eight"
ABLATE = [{"layer": 0, "head": 0}]
JSON_SIZES: list[tuple[dict[str, Any], int]] = [
    ({}, 4 * 100 * 15),
    ({"layers": [0]}, 2 * 100 * 15),
    ({"layers": [0], "heads": [1]}, 100 * 15),
    ({"top_k": 3}, 4 * 10 * 3 * (15 + 6)),
    ({"top_k": 50}, 4 * 100 * (15 + 6)),
    ({"include": ["stats"]}, 4 * 8 * 15),
    ({"include": ["rollout"], "layers": [0]}, 100 * 15),
    ({"include": ["rollout", "stats", "weights"]}, (4 * 100 + 4 * 8 + 100) * 15),
    ({"ablate": ABLATE}, 4 * 100 * 15),
    ({"include": ["norms"], "heads": [1]}, 2 * 100 * 15),
    ({"include": ["norms", "weights", "norm_rollout"], "top_k": 3}, 4 * (210 * 3 + 1500) + 1500),
]


@pytest.mark.parametrize(("asked", "size"), JSON_SIZES)
async def test_json_too_large_is_refused_before_it_is_computed(
    artifact: Artifact, asked: dict[str, Any], size: int
) -> None:
    engine = AnsweringEngine(lambda _: None)
    for texts in (1, 3):
        body = {"inputs": [TEN_TOKENS] * texts, **asked}
        async with serving(artifact, engine, max_response_bytes=texts * size - 1) as client:
            response = await client.post("/attention", json=body)
            problem = assert_problem(response, 413, says=f"about {texts * size} bytes, more than")
            assert f"Accept: {SAFETENSORS}" in problem["detail"]
        assert engine.batches == 0
    async with serving(artifact, engine, max_response_bytes=size) as client:
        assert (await client.post("/attention", json=body | {"inputs": TEN_TOKENS})).is_success


@pytest.mark.parametrize("asked", [*(asked for asked, _ in JSON_SIZES), {"dtype": "float16"}])
async def test_binary_too_large_is_refused_to_the_byte(
    artifact: Artifact, asked: dict[str, Any]
) -> None:
    engine = AnsweringEngine(lambda _: None)
    body = {"inputs": [TEN_TOKENS, "a"], **asked}
    async with serving(artifact, engine) as client:
        size = len((await client.post("/attention", json=body, headers=BINARY)).content)
    engine.batches = 0
    async with serving(artifact, engine, max_response_bytes=size - 1) as client:
        response = await client.post("/attention", json=body, headers=BINARY)
        problem = assert_problem(response, 413, says=f"about {size} bytes, more than {size - 1}")
        assert "Accept" not in problem["detail"]
        assert engine.batches == 0
    async with serving(artifact, engine, max_response_bytes=size) as client:
        response = await client.post("/attention", json=body, headers=BINARY)
        assert response.headers["content-length"] == str(len(response.content)) == str(size)


# ── whole and streamed, over a socket ──────────────────────────────────────────────────────

LONG = "a " * 298
"""300 tokens: all maps take 1.4 MB."""


@pytest.mark.parametrize("headers", [{}, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("texts", [1, 5])
async def test_a_streamed_reply_is_complete(
    artifact: Artifact, headers: dict[str, str], texts: int
) -> None:
    inputs = [LONG + "b " * n for n in range(texts)]
    with listening(artifact, FakeEngine(CONFIG)) as (_, port):
        url = f"http://127.0.0.1:{port}/attention"
        response = httpx.post(url, json={"inputs": inputs}, headers=headers)
        assert response.status_code == 200
        assert len(response.content) > WHOLE_BYTES
        assert response.headers["x-compute-tokens"] == str(sum(300 + n for n in range(texts)))
        small = [
            httpx.post(url, json={"inputs": text, "heads": [1], "layers": [0]}, headers=BINARY)
            for text in inputs
        ]
    wanted = [load(one.content)["attention.0"] for one in small]
    if headers:
        assert response.headers["content-length"] == str(len(response.content))
        tensors = load(response.content)
        found = [tensors[f"attention.{n}"] for n in range(texts)]
    else:
        assert "content-length" not in response.headers
        found = [np.array(one["attention"], "f4") for one in response.json()["results"]]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one[:1, 1:], other, strict=True)


@pytest.mark.parametrize("headers", [{}, BINARY], ids=["json", "binary"])
async def test_a_whole_reply_has_its_length(artifact: Artifact, headers: dict[str, str]) -> None:
    with listening(artifact, FakeEngine(CONFIG)) as (_, port):
        url = f"http://127.0.0.1:{port}/attention"
        response = httpx.post(url, json={"inputs": TEXTS, **EVERYTHING}, headers=headers)
    assert response.status_code == 200
    assert response.headers["content-length"] == str(len(response.content))
    if not headers:
        assert len(json.loads(response.content)["results"]) == len(TEXTS)


def fails_at(layer: int, length: int) -> Any:
    def answer(tasks: Sequence[Task]) -> list[Output] | None:
        for task in tasks:
            if isinstance(task, MapsTask) and (task.layer, task.tokens) == (layer, length):
                raise RuntimeError("c4n4ry")
        return None

    return answer


@pytest.mark.parametrize("headers", [{}, BINARY], ids=["json", "binary"])
async def test_a_failure_after_the_first_byte_cuts_the_reply(
    artifact: Artifact, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.stream.GROUP_BYTES", 2**20)
    engine = AnsweringEngine(fails_at(1, 302))
    body = {"inputs": [LONG + "b " * n for n in range(4)]}
    with listening(artifact, engine) as (app, port):
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            with client.stream("POST", "/attention", json=body) as response:
                assert response.status_code == 200
                chunks = response.iter_raw()
                received = b"".join(itertools.islice(chunks, 5))
                with pytest.raises(httpx.RemoteProtocolError):
                    received += b"".join(chunks)
            assert received
            assert b"c4n4ry" not in received
            if not headers:
                with pytest.raises(json.JSONDecodeError):
                    json.loads(received)
            engine.answer = lambda _: None
            again = client.post("/attention", json=body)
            assert again.status_code == 200
            assert again.content.startswith(received)
            samples = client.get("/metrics").text
        assert 'headscope_failed_batches_total{lane="attention",model="small"} 1.0' in samples
        assert state_of(app).replies.held == 0


@pytest.mark.parametrize("headers", [{}, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("inputs", ["a", [LONG] * 3], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", [TextTask, MapsTask])
async def test_a_failure_before_the_first_byte_is_a_problem(
    artifact: Artifact, kind: type, inputs: Any, headers: dict[str, str]
) -> None:
    def answer(tasks: Sequence[Task]) -> None:
        if any(isinstance(task, kind) for task in tasks):
            raise RuntimeError("c4n4ry")

    engine = AnsweringEngine(answer)
    async with serving(artifact, engine) as client:
        response = await client.post("/attention", json={"inputs": inputs}, headers=headers)
        assert_problem(response, 500, says="raised RuntimeError", error_type="Backend")
        assert "c4n4ry" not in response.text
        assert state_of(client.app).replies.held == 0
        engine.answer = lambda _: None
        response = await client.post("/attention", json={"inputs": inputs}, headers=headers)
        assert response.status_code == 200


async def test_an_item_without_pieces_is_sent_as_nothing() -> None:
    async def rest() -> AsyncGenerator[Part | Unwritten]:
        for item in (iter([]), b"more", iter([])):
            yield item

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    service = SimpleNamespace(turns=Turns())
    response = PartsResponse([b"first"], JSON, Timings(1, 0.0, 0.0), rest())
    await response(exchange(send=send, service=service).scope, None, send)  # type: ignore[arg-type]
    assert sent == [b"", b"first", b"more", b""]


@pytest.mark.parametrize("fails_after", [0, 1, 2, 3])
async def test_a_reply_that_cannot_be_sent_ends_its_work(fails_after: int) -> None:
    closed, sent = [], []

    async def rest() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"more"
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        if len(sent) == fails_after:
            raise ConnectionResetError
        sent.append(message)

    parts = rest()
    await anext(parts)
    timings = Timings(1, 0.0, 0.0)
    response = PartsResponse([b"first"], SAFETENSORS, timings, parts, length=100)
    scope = exchange(send=send, service=SimpleNamespace(turns=Turns())).scope
    with pytest.raises(ConnectionResetError):
        await response(scope, None, send)  # type: ignore[arg-type]
    assert closed == [True]
