"""Routes: media types, expected fingerprints, deadlines, turns, keys, held bytes and errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from model.artifact.manifest import Artifact
from service.api.drop_in.scores import RANK_BYTES
from service.api.wire import json_pieces
from service.api.wire.media import MODEL_PARAMETER, SAFETENSORS, is_known, prefers
from service.api.wire.replies import describe_errors, error_reply, problem_response
from service.api.wire.route import SEND_BYTES, _send
from service.api.wire.schemas import NAMED
from service.engines.fake import FakeEngine
from service.errors import EngineFailed, EngineUnavailable, Unauthorized
from service.http import exchange as http_exchange
from service.http.exchange import part_of
from service.inference.core import Inference
from service.inference.fingerprint import FINGERPRINT_HEADER, fingerprint_of
from service.inference.timings import HEADERS, Timings
from service.inference.tokenization.tokenizer import TextTokenizer
from service.models.state import state_of
from service.telemetry.requests import FRAME_BYTES
from tests.service.api.tei.tasks import LABELS, RANKS, ScoringEngine, serving_task
from tests.service.harness import (
    GatedEngine,
    assert_problem,
    exchange,
    reserved_replies,
    serving,
    until,
)
from tests.service.inference.test_engine_pool import ROUTES, NamedFake
from tests.service.repositories import ADMIN, add, serving_repository
from tests.service.scheduler.requests import FakeClock
from tests.service.scraped import samples
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


MOST = 16
TEXT = "the street was too wide " * 8
PAIR = [TEXT, TEXT[4:]]
KSERVE = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}],
    "outputs": [{"name": "embeddings"}, {"name": "attention"}],
}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/encode", {"inputs": [TEXT] * 2}),
    ("/encode", {"inputs": TEXT, "layers": [0, 1], "outputs": ["tokens"]}),
    ("/attention", {"inputs": TEXT}),
    ("/attention", {"inputs": TEXT, "top_k": 3}),
    ("/attention", {"inputs": TEXT, "include": ["weights", "norms", "rollout"]}),
    ("/attention/scores", {"inputs": TEXT, "layer": 0, "head": 1}),
    ("/explain", {"inputs": [PAIR]}),
    ("/embed_all", {"inputs": [TEXT]}),
    ("/pooling", {"input": [TEXT], "task": "token_embed"}),
    ("/v1/embeddings", {"input": [TEXT] * 3}),
    ("/embed", {"inputs": [TEXT] * 3}),
    ("/embeddings", {"input": [TEXT] * 3}),
    ("/v2/models/{model}/infer", KSERVE),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=lambda value: str(value)[:60])
async def test_numbers_are_written_in_turns(
    artifact: Artifact, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[bytes] = []

    def noting(given: Iterator[bytes]) -> Iterator[bytes]:
        for piece in given:
            pieces.append(bytes(piece))
            yield piece

    def spied(given: Iterator[bytes]) -> bytes:
        return part_of(noting(given))

    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        model = (await client.get("/info")).json()["served_model_name"]
        whole = await client.post(path.format(model=model), json=body)
        monkeypatch.setattr(json_pieces, "PIECE", MOST)
        monkeypatch.setattr(http_exchange, "part_of", spied)
        reply = await client.post(path.format(model=model), json=body)
    assert reply.status_code == 200, reply.text
    assert len(reply.content) == len(whole.content), "all but the ids of replies is the same"
    in_turns = b"".join(pieces)
    assert in_turns.count(b".") == reply.content.count(b".")
    assert len(pieces) > 1
    floats = (piece.count(b".") for piece in pieces if b'"text"' not in piece)
    assert max(floats) <= MOST


async def test_what_is_left_of_a_large_part_is_not_copied_with_each_send() -> None:
    """Else a part of 45 MB costs a gigabyte of copies on the event loop."""
    sent: list[bytes | memoryview] = []

    async def send(message: Message) -> None:
        sent.append(message["body"])

    part = bytes(3 * SEND_BYTES + 1)
    await _send(send, part)
    assert b"".join(sent) == part
    assert [len(body) for body in sent] == [SEND_BYTES] * 3 + [1]
    assert all(isinstance(body, memoryview) and body.obj is part for body in sent)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Freeze the clock of all code that checks a request's deadline."""
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr("service.inference.tokenization.request_tokenizer.time", clock)
    clock.now = time.monotonic()
    return clock


@pytest.mark.parametrize("route", ["/encode", "/attention"])
@pytest.mark.parametrize(
    ("headers", "settings"),
    [({"x-request-timeout-ms": "50"}, {}), ({}, {"request_timeout_seconds": 0.05})],
    ids=["header", "setting"],
)
async def test_a_hanging_engine_is_a_504_at_the_deadline(
    artifact: Artifact,
    clock: FakeClock,
    route: str,
    headers: dict[str, str],
    settings: dict[str, float],
) -> None:
    engine = GatedEngine()
    async with serving(artifact, engine, **settings) as client:
        asked = asyncio.create_task(client.post(route, json={"inputs": "a"}, headers=headers))
        await until(lambda: engine.batches)
        clock.now += 60
        problem = assert_problem(await asked, 504, error_type="Backend")
        assert problem["retryable"]
        assert (await client.get("/health/live")).status_code == 200
        engine.let_through()


async def test_no_time_at_all_is_a_429_with_retry_after(artifact: Artifact) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        headers = {"x-request-timeout-ms": "0"}
        response = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert_problem(response, 429, error_type="Overloaded")
        metrics = (await client.get("/metrics")).text
        assert 'headscope_refused_total{reason="queue_deadline",route="/encode"} 1.0' in metrics


async def test_only_other_paths_and_methods_reach_the_router(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    routed: list[str] = []
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        router = client.app.router
        answer = router.middleware_stack

        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            routed.append(f"{scope['method']} {scope['path']}")
            await answer(scope, receive, send)

        monkeypatch.setattr(router, "middleware_stack", noting)
        assert (await client.post("/encode", json={"inputs": "a text"})).status_code == 200
        assert_problem(await client.post("/encode", json={"inputs": 1}), 422)
        assert routed == []
        assert_problem(await client.get("/encode"), 405)
        assert_problem(await client.post("/encode/", json={}), 404)
        assert routed == ["GET /encode", "POST /encode/"]


async def test_a_reply_has_its_limit_and_gives_its_bytes_back(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that would be too large is refused before anything is computed."""
    async with serving_task(artifact, RANKS, max_response_bytes=1024) as client:
        sizes = reserved_replies(monkeypatch)
        engine = state_of(client.app).models.default.inference.engines.default.engine
        body = {"query": "a", "texts": ["x" * 20] * 10}
        fits = await client.post("/rerank", json=body)
        refused = await client.post("/rerank", json=body | {"return_text": True})
        assert isinstance(engine, ScoringEngine)
        assert engine.scored == 10
        assert len(sizes) == 1
        assert state_of(client.app).replies.held == 0
    assert (fits.status_code, refused.status_code) == (200, 413)
    assert "send fewer texts" in refused.json()["error"]


async def test_a_reply_holds_its_bytes_until_it_is_sent(artifact: Artifact) -> None:
    held_while_sent = []

    async def send(_: Any) -> None:
        held_while_sent.append(replies.held)

    async with serving_task(artifact, RANKS) as client:
        replies = state_of(client.app).replies
        found = exchange(send=send, service=state_of(client.app))
        found.reserve(1000)
        assert replies.held == 1000
        response = await found.json_reply(lambda: [1], Timings(0, 0.0, 0.0))
        await response(found.scope, client.get, send)
        found.reservation.release()
        assert replies.held == 0
    assert held_while_sent == [1000, 1000]


@pytest.mark.parametrize("fails", ["the engine", "the writer"])
async def test_what_fails_gives_its_bytes_back(
    artifact: Artifact, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    async with serving_task(artifact, LABELS) as client:
        if fails == "the engine":
            monkeypatch.setattr(ScoringEngine, "expected", fail)
        else:
            monkeypatch.setattr("service.api.tei.scores.predictions", fail)
        response = await client.post("/predict", json={"inputs": "a"})
        replies = state_of(client.app).replies
        assert (replies.held, replies.returned > 0) == (0, True)
    assert response.status_code == 500


PAIRS = [["a b c", "a b c"]] * 20


@pytest.mark.parametrize(
    ("path", "body", "predicted"),
    [
        ("/explain", {"inputs": PAIRS}, range(1, 2**20)),
        ("/rerank", {"query": "a b", "texts": ["a b c"] * 20}, [20 * RANK_BYTES]),
    ],
)
async def test_the_reply_of_a_late_interaction_model_is_predicted(
    late_artifact: Artifact, path: str, body: dict[str, Any], predicted: Sequence[int]
) -> None:
    """The bytes of token vectors, which the computation needs, are not predicted of the reply."""
    async with serving(late_artifact) as client:
        reply = await client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        found = await samples(client)
    label = (("route", path),)
    assert found["headscope_reply_prediction_ratio_count", label] == 1
    ratio = found["headscope_reply_prediction_ratio_sum", label]
    assert round(len(reply.content) / ratio) - FRAME_BYTES in predicted


USER, WRONG = {"authorization": "Bearer user"}, {"authorization": "Bearer other"}


async def test_an_admin_key_alone_changes_models_and_is_a_key_for_all_else(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    add(tmp_path, "org/a", tiny_artifact)
    body = {"inputs": "a", "model": "org/a"}
    async with serving_repository(tmp_path, api_keys="user") as client:
        for method in ("PUT", "DELETE"):
            for headers, status in (({}, 401), (WRONG, 401), (USER, 403)):
                refused = await client.request(method, "/models/org/a", headers=headers)
                assert_problem(refused, status, "key 0 may not change" if status == 403 else "")
        for headers, status in (({}, 401), (USER, 200), (ADMIN, 200)):
            reply = await client.post("/encode", json=body, headers=headers)
            assert reply.status_code == status


async def test_without_admin_keys_it_is_off(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    async with serving_repository(tmp_path, admin_keys=None) as user_client:
        assert_problem(await user_client.put("/models/a", headers=ADMIN), 403, "--admin-keys")
        assert (await user_client.get("/models/a")).status_code == 200
    async with serving_repository(tmp_path) as user_client:  # and other requests need none
        assert (await user_client.post("/encode", json={"inputs": "a"})).status_code == 200


def test_an_error_says_when_to_try_again_or_asks_for_a_key() -> None:
    response = problem_response(EngineUnavailable("down", retry_after_seconds=7), "mine")
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")
    assert json.loads(bytes(response.body)).keys() == NAMED["Problem"]["properties"].keys()
    plain = error_reply(EngineFailed("no"), b"no", "text/plain")
    assert (plain.status_code, bytes(plain.body)) == (500, b"no")
    assert {"retry-after", "www-authenticate"}.isdisjoint(plain.headers)
    asked = error_reply(Unauthorized("no key"), b"", "text/plain")
    challenges = asked.headers.getlist("www-authenticate")
    assert [challenge.split()[0] for challenge in challenges] == ["Bearer", "Basic"]


@pytest.mark.parametrize(
    ("location", "reported"),
    [
        (("inputs", 3), "inputs.3: no"),
        (("a b",), "?: no"),
        (("inputs", "<b>", 1), "inputs.?.1: no"),
        (("n" * 40,), "n" * 40 + ": no"),
        (("n" * 41,), "?: no"),
        (("é",), "?: no"),
        ((), "body: no"),
    ],
    ids=str,
)
def test_the_name_of_a_field_is_told_if_it_is_tame(
    location: tuple[str | int, ...], reported: str
) -> None:
    assert describe_errors([{"loc": location, "msg": "no"}]) == reported


def test_a_description_is_one_short_line() -> None:
    reported = describe_errors([{"loc": ("inputs",), "msg": "m" * 300}] * 5)
    assert reported.startswith(f"inputs: {'m' * 300}; inputs: ")
    assert len(reported) == 1000


@pytest.mark.parametrize("name", ["a", "org/a", "", "a\n", "\n", "a\nb/c", "a b", "\x85"])
def test_any_text_is_a_name(name: str) -> None:
    for ending in ("", "/ready"):
        regex, template, convertors = compile_path(f"/models/{MODEL_PARAMETER}{ending}")
        found = regex.match(f"/models/{name}{ending}")
        assert found is not None
        assert convertors["model"].convert(found["model"]) == name
        assert template == f"/models/{{model}}{ending}"


BINARY = [
    " {st} ; q=0.5 ",
    "{st};q=1.000",
    "{st};q=0.001",
    "application/json;q=0.5, {st};q=0.5",
    "*/*;q=0.8, {st};q=0.7",
    "{st};q=0, {st};q=0.5",
    "{st};version=1;q=0.5",
    "{st};q=two",
    "{st};q=nan",
]
JSON = [
    "{st}x",
    "text/html;type={st}",
    "{st}; Q=0.000",
    "{st};version=1 ;\tq=0 ",
    "{st};q=0, */*",
    "{st};q=0.5, application/json",
    "application/json;q=0.9, {st};q=0.8",
]


@pytest.mark.parametrize("accept", [*BINARY, *JSON])
def test_who_names_it_and_likes_it_no_less_gets_it(accept: str) -> None:
    asked = accept.format(st=SAFETENSORS)
    assert prefers(asked, SAFETENSORS, "application/json") == (accept in BINARY)


@pytest.mark.parametrize(
    ("header", "known"),
    [('"a"', True), ('W/"a"', True), ('"b", "a"', True), ('"b"', False), ("a", False), ("", False)],
)
def test_a_tag_is_known_by_itself(header: str, known: bool) -> None:
    headers = [(b"if-none-match", header.encode())]
    assert is_known(Request({"type": "http", "headers": headers}), '"a"') == known
    assert not is_known(Request({"type": "http", "headers": []}), '"a"')


async def test_every_route_of_a_model_documents_its_headers(client: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    replies = {
        path: operations["post"]["responses"]["200"]
        for path, operations in document["paths"].items()
        if "requestBody" in operations.get("post", {}) and "/repository/" not in path
    }
    assert len(replies) > 20
    for path, reply in replies.items():
        assert {FINGERPRINT_HEADER, "x-model", *HEADERS.values()} <= reply["headers"].keys(), path
        assert reply["description"], path


OTHER = "0123456789abcdef"
ERROR_TEXT = {
    "/encode": lambda error: error["detail"],
    "/embed": lambda error: error["error"],
    "/v1/embeddings": lambda error: error["error"]["message"],
    "/v2/embed": lambda error: error["message"],
    "/pooling": lambda error: error["error"]["message"],
    "/v2/models/any/infer": lambda error: error["error"],
}
"""Path → the message of an error in its dialect's form."""


async def test_another_expected_fingerprint_is_refused_before_the_texts_are_tokenised(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(artifact, fake_of(artifact)) as client:
        own = (await client.get("/info")).headers["x-model-fingerprint"]
        for path, body in ROUTES:
            answer = await client.post(path, json=body, headers={"x-expect-fingerprint": own})
            assert answer.status_code == 200, (path, answer.text)
        monkeypatch.delattr(TextTokenizer, "tokenize")
        for path, body in ROUTES:
            answer = await client.post(path, json=body, headers={"x-expect-fingerprint": OTHER})
            assert answer.status_code == 409, (path, answer.text)
            assert answer.headers["x-model-fingerprint"] == own
            says = ERROR_TEXT.get(path, ERROR_TEXT["/embed"])(answer.json())
            assert own in says
            assert OTHER in says
        for path in ("/v2/models/any", "/v2/models/any/ready"):
            answer = await client.get(path, headers={"x-expect-fingerprint": OTHER})
            assert answer.status_code == 409, path
        answer = await client.get("/info", headers={"x-expect-fingerprint": OTHER})
        assert answer.status_code == 200  # so that a client can find out


@pytest.mark.parametrize("value", ["", "0123", f"{OTHER}0", OTHER.upper(), "<script>"])
async def test_an_expected_fingerprint_has_the_form_of_one(
    client: httpx.AsyncClient, value: str
) -> None:
    headers = {"x-expect-fingerprint": value}
    answer = await client.post("/encode", json={"inputs": "a"}, headers=headers)
    assert answer.status_code == 422
    assert "x-expect-fingerprint must be 16 hexadecimal digits" in answer.json()["detail"]


async def test_the_fingerprint_of_the_named_engine_is_expected(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8 = variant(artifact, "int8", 12, precision="int8")
    engine = NamedFake(int8, "onnx")
    own, other = (
        fingerprint_of(int8, engine.provider, stand_in=stand_in) for stand_in in (False, True)
    )
    async with serving(int8, engine) as client:
        engines = state_of(client.app).models.default.inference.engines
        monkeypatch.setitem(engines._factories, "torch", lambda: NamedFake(int8, "torch"))
        for backend, expected, status in [
            ("torch", other, 200),
            ("torch", own, 409),
            ("onnx", own, 200),
            ("onnx", other, 409),
        ]:
            body = {"inputs": "a", "backend": backend}
            headers = {"x-expect-fingerprint": expected}
            answer = await client.post("/encode", json=body, headers=headers)
            assert answer.status_code == status, (backend, expected)
        taken_over = Inference.prepare

        async def turning(*arguments: Any) -> Any:
            engines.stand_in = "torch"
            return await taken_over(*arguments)

        monkeypatch.setattr(Inference, "prepare", turning)
        headers = {"x-expect-fingerprint": own}
        answer = await client.post("/encode", json={"inputs": "a"}, headers=headers)
        assert answer.status_code == 409
        assert answer.headers["x-model-fingerprint"] == other
