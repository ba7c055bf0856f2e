"""Choice between several models by a request, and the state that routes and server share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Pooling, TextTask
from service.http.connection import HttpProtocol
from service.models.state import state_of
from service.process.server import Server
from service.system import resources
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE
from tests.service.harness import Client, GatedEngine, assert_problem, serving, until
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


PAIR = {"query": "a", "texts": ["b", "c"]}


@pytest.fixture(scope="module")
def artifacts(artifact: Artifact) -> list[Artifact]:
    """Return two encoders, a classifier, a cross-encoder and a sparse encoder of one tokenizer."""
    return [
        variant(artifact, "first", 128),
        variant(artifact, "org/Zweites Mödell", 64),
        variant(artifact, "labels", 32, LABELS),
        variant(artifact, "ranks", 16, RANKS),
        variant(artifact, "sparse", 8, SPARSE),
    ]


@pytest.fixture(scope="module")
async def client(artifacts: list[Artifact], anyio_backend: str) -> AsyncIterator[Client]:
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        yield client


async def test_the_model_that_was_named_answers(client: Client, artifacts: list[Artifact]) -> None:
    """Its vectors come only from its engine; maps and the header have its name."""
    for one in artifacts:
        name = one.manifest.model
        answer = await client.post(
            "/encode", json={"inputs": "a b", "model": name, "normalize": False, "layer": 1}
        )
        reply = answer.json()
        ids = np.array(reply["results"][0]["token_ids"])
        expected = fake_of(one).expected(
            TextTask(ids, np.zeros_like(ids), (1,), Pooling(1, one.manifest.sentence.pooling))
        )
        assert reply["model"] == name
        np.testing.assert_array_equal(
            np.array(reply["results"][0]["embeddings"], np.float32), expected.hidden[0]
        )
        assert answer.headers["x-model"] == name.replace("ö", "%C3%B6")
        maps = await client.post("/attention", json={"inputs": "a", "model": name})
        assert maps.json()["model"] == name
        info = (await client.get("/info", params={"model": name})).json()
        assert (info["model_id"], info["hidden_size"]) == (name, one.manifest.config.hidden_size)
        assert "models" not in info


@pytest.mark.parametrize(
    ("route", "body", "name"),
    [
        ("/encode", {"inputs": "a"}, "first"),
        ("/attention", {"inputs": "a"}, "first"),
        ("/predict", {"inputs": "a"}, "labels"),
        ("/rerank", PAIR, "ranks"),
        ("/embed_sparse", {"inputs": "a"}, "sparse"),
        ("/embed_sparse", {"inputs": "a", "method": "bm42"}, "first"),
    ],
)
async def test_without_a_name_the_first_that_can_answers(
    client: Client, route: str, body: dict[str, object], name: str
) -> None:
    answer = await client.post(route, json=body)
    assert (answer.status_code, answer.headers["x-model"]) == (200, name)


async def test_a_model_that_was_named_is_never_replaced(client: Client) -> None:
    for model in ("first", "labels", "sparse"):
        answer = await client.post("/rerank", json={**PAIR, "model": model})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
        assert model in answer.json()["error"]


async def test_where_none_can_the_first_refuses(artifacts: list[Artifact]) -> None:
    first, second, *_ = artifacts
    async with serving([second, first], [fake_of(second), fake_of(first)]) as client:
        answer = await client.post("/rerank", json=PAIR)
        assert answer.status_code == 424
        assert "org/Zweites Mödell has no task head" in answer.json()["error"]


async def test_an_unknown_name_is_told_those_there_are(client: Client) -> None:
    says = "there are: first, org/Zweites Mödell, labels, ranks, sparse"
    for route in ("/encode", "/attention", "/verify"):
        answer = await client.post(route, json={"inputs": "a", "model": "c4n4ry"})
        assert_problem(answer, 404, says)
        assert "c4n4ry" not in answer.text
    assert_problem(await client.get("/info?model=second"), 404, says)
    for route, body in (
        ("/predict", {"inputs": "a"}),
        ("/rerank", PAIR),
        ("/embed_sparse", {"inputs": "a"}),
    ):
        answer = await client.post(route, json={**body, "model": ""})
        assert answer.status_code == 404
        assert answer.json().keys() == {"error", "error_type"}
        assert says in answer.json()["error"]


async def test_information_of_all(client: Client, artifacts: list[Artifact]) -> None:
    info = (await client.get("/info")).json()
    assert info["model_id"] == "first"
    assert [one["model_id"] for one in info["models"]] == [one.manifest.model for one in artifacts]
    assert all(one.keys() == info.keys() - {"models"} for one in info["models"])


async def test_one_model_answers_to_every_name_and_says_so(artifact: Artifact) -> None:
    name = artifact.manifest.model
    async with serving(artifact, fake_of(artifact)) as client:
        plain = await client.post("/encode", json={"inputs": "a"})
        right = await client.post("/encode", json={"inputs": "a", "model": name})
        wrong = await client.post(
            "/encode", json={"inputs": "a", "model": "text-embedding-3-small"}
        )
        assert plain.content == right.content == wrong.content
        assert not {"x-model"}.intersection([*plain.headers, *right.headers])
        assert wrong.headers["x-model"] == name
        info, other = await client.get("/info"), await client.get("/info?model=other")
        assert info.content == other.content
        assert "models" not in info.json()
        assert ("x-model" in info.headers, other.headers["x-model"]) == (False, name)


async def test_what_waits_is_told_of_each_model_and_as_old_as_its_refresh(
    artifact: Artifact,
) -> None:
    engines = [GatedEngine(), GatedEngine()]
    async with serving([variant(artifact, name, 8) for name in "ab"], engines) as client:
        state = state_of(client.app)

        async def ask(name: str, text: str) -> int:
            body = {"inputs": text, "model": name}
            return (await client.post("/encode", json=body)).status_code

        def reported() -> list[float | None]:
            value = state.metrics.registry.get_sample_value
            labels = [{"model": m, "lane": lane} for m in "ab" for lane in ("encode", "attention")]
            return [value("headscope_queue_tokens", one) for one in labels]

        asked = [asyncio.create_task(ask(name, "a")) for name in "ab"]
        await until(lambda: all(engine.batches for engine in engines))
        asked += [asyncio.create_task(ask(name, "a b c d")) for name in "ab"]
        lanes = [one.inference.engines.default.lanes["encode"] for one in state.models]
        await until(lambda: [lane.queued_tokens for lane in lanes] == [6, 6])
        assert await state.refresh_metrics() == ""
        assert reported() == [6, 0, 6, 0]
        for engine in engines:
            engine.let_through()
        assert await asyncio.gather(*asked) == [200] * 4
        assert reported() == [6, 0, 6, 0]
        await state.refresh_metrics()
        assert reported() == [0] * 4


async def test_every_engine_returns_memory_before_the_allocator_does(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[object] = []
    artifacts = [variant(artifact, "first", 128), variant(artifact, "second", 64)]
    engines = [fake_of(one) for one in artifacts]
    for engine in engines:
        monkeypatch.setattr(engine, "release_memory", functools.partial(released.append, engine))
    monkeypatch.setattr(resources, "release_memory", functools.partial(released.append, "all"))
    async with serving(artifacts, engines) as client:
        state_of(client.app).models.release_memory()
    assert released == [*engines, "all"]


async def test_the_connections_of_each_server_are_counted(artifact: Artifact) -> None:
    async with serving(artifact, GatedEngine()) as client:
        state = state_of(client.app)
        servers = [Server(client.app, state.settings) for _ in range(2)]
        for server in servers:
            server.server_state.connections.add(HttpProtocol.__new__(HttpProtocol))
        await state.refresh_metrics()
        assert state.metrics.registry.get_sample_value("headscope_connections") == 2
