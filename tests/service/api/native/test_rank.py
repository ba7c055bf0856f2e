"""`POST /rank`, /verify and commands for models: fields, refusals, and the OpenAPI document."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.artifact.manifest import MANIFEST, Artifact
from model.numerics.comparison import TOLERANCES, Comparison, Difference, Key, tolerances_of
from service.api.native.verify import report
from tests.service.api.tei.tasks import LABELS, RANKS
from tests.service.documented import check_documented
from tests.service.harness import Client, assert_problem, serving
from tests.service.logged import Log
from tests.service.repositories import ADMIN, add, encode, serving_repository, states
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


BODY: dict[str, Any] = {"query": "a cat", "documents": ["a dog", "the cat", "a red car"]}


async def test_the_best_documents_without_an_explanation(client: httpx.AsyncClient) -> None:
    answer = await client.post("/rank", json=BODY | {"top_n": 2})
    reply = answer.json()
    assert reply.keys() == {"model", "backend", "scoring", "prompts", "results", "usage"}
    assert [result.keys() for result in reply["results"]] == [{"index", "score"}] * 2
    assert reply["usage"]["inputs"] == 3
    assert reply["usage"]["tokens"] == int(answer.headers["x-compute-tokens"])
    every = (await client.post("/rank", json=BODY | {"top_n": 9})).json()["results"]
    assert every[:2] == reply["results"]


async def test_the_text_that_is_too_long_is_named(client: httpx.AsyncClient) -> None:
    for changes, says in [
        ({"documents": ["a", "cat " * 600]}, "documents[1] has 602 tokens"),
        ({"query": "cat " * 600}, "the query has 602 tokens"),
    ]:
        answer = await client.post("/rank", json=BODY | changes)
        assert_problem(answer, 422, says, "Tokenizer")


async def test_texts_are_cut_on_request_and_that_is_a_warning(client: httpx.AsyncClient) -> None:
    body = BODY | {"documents": ["a", "cat " * 600], "truncate": True, "explain": "tokens"}
    reply = (await client.post("/rank", json=body)).json()
    assert reply["warnings"] == {"truncated": 1}
    cut = {result["index"]: result["truncated"] for result in reply["results"]}
    assert cut == {0: False, 1: True}


async def test_a_reply_that_would_be_too_large_is_not_computed(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact), max_response_bytes=2_000) as client:
        assert (await client.post("/rank", json=BODY)).status_code == 200
        for explain in ("tokens", "contrast"):
            answer = await client.post("/rank", json=BODY | {"explain": explain})
            assert_problem(answer, 413, "fewer or shorter documents")


async def test_the_first_model_that_ranks_answers(artifact: Artifact) -> None:
    models = [variant(artifact, "a", 8, LABELS), variant(artifact, "b", 8, RANKS)]
    async with serving(models, [fake_of(model) for model in models]) as client:
        reply = (await client.post("/rank", json=BODY)).json()
        assert (reply["model"], reply["scoring"]) == ("b", "logit")


DOCUMENTED: dict[str, Any] = {"query": "a cat", "documents": ["a dog", "The cat and the dog", ""]}


@pytest.mark.parametrize("explain", ["none", "tokens", "contrast"])
async def test_replies_are_as_documented(client: httpx.AsyncClient, explain: str) -> None:
    """Offsets are of the caller's text, in code points; every field is documented."""
    reply = (await client.post("/rank", json=DOCUMENTED | {"explain": explain})).json()
    check_documented("RankReply", reply)
    for result in reply["results"] if explain == "tokens" else ():
        text = DOCUMENTED["documents"][result["index"]].lower()
        pieces = [text[start:end] for start, end in result["offsets"][1:-1]]
        assert pieces == [token.removeprefix("##") for token in result["tokens"][1:-1]]
    for row in reply["contrast"]["words"] if explain == "contrast" else ():
        for side, spans in enumerate(row["spans"]):
            text = DOCUMENTED["documents"][reply["contrast"]["documents"][side]]
            assert {text[start:end].casefold() for start, end in spans} <= {row["word"]}


GOOD, BAD = Difference(1e-6, 1.0, passed=True), Difference(0.25, 0.5, passed=False)


def compared(*, wrong: Key | None = None) -> Comparison:
    """Return a comparison of two hidden states, a layer of two heads, and vectors of four texts."""
    keys = [Key("hidden", 0), Key("hidden", 1), Key("attention", 0, 0), Key("attention", 0, 1)]
    differences = {key: BAD if key == wrong else GOOD for key in [*keys, Key("pooled")]}
    return Comparison(differences=differences, inputs=4)


def test_every_tensor_is_named_with_its_difference_and_its_tolerance() -> None:
    found = report(compared(wrong=Key("attention", 0, 1)), TOLERANCES["fp32"])
    check_documented("VerifyReply", found)
    good = {"max_abs_diff": 1e-6, "min_cosine": 1.0, "passed": True}
    bad = {"max_abs_diff": 0.25, "min_cosine": 0.5, "passed": False}
    hidden = {"atol": 1e-4, "rtol": 1e-5, "cosine_at_least": 0.99999}
    maps = {"atol": 1e-5, "rtol": 0.0, "cosine_at_least": 0.99999}
    pooled = {"atol": 1e-5, "rtol": 0.0, "cosine_at_least": 0.99999}
    assert found == {
        "passed": False,
        "reference": "torch",
        "against": "onnx",
        "inputs": 4,
        "hidden": [{"layer": layer} | good | hidden for layer in (0, 1)],
        "attention": [{"layer": 0, "head": 0} | good | maps, {"layer": 0, "head": 1} | bad | maps],
        "pooled": good | pooled,
    }


def test_the_tolerances_are_those_of_the_precision_and_of_a_task_head() -> None:
    comparison = compared()
    comparison.differences[Key("task")] = BAD
    found: Any = report(comparison, TOLERANCES["int8"])
    assert (found["hidden"][1]["atol"], found["pooled"]["atol"]) == (10.0, 1.0)
    assert found["task"].items() >= {"max_abs_diff": 0.25, "passed": False}.items()
    assert (found["hidden"][0]["passed"], found["passed"]) == (True, False)
    check_documented("VerifyReply", found)


def test_a_decoder_has_differences_of_its_own() -> None:
    comparison = compared()
    keys = [Key("decoder_hidden", 0), Key("cross_queries", 0), Key("logprobs")]
    keys += [Key("decoder_attention", 0, 1), Key("cross_attention", 1, 0)]
    comparison.differences |= dict.fromkeys(keys, BAD)
    found = report(comparison, tolerances_of("fp32", 1, 2))
    assert len(found["hidden"]) == len(found["attention"]) == 2
    check_documented("VerifyReply", found)
    reported: Any = found["decoder"]
    assert [(each["layer"], each["head"]) for each in reported["cross_attention"]] == [(1, 0)]
    assert [(each["layer"], each["head"]) for each in reported["attention"]] == [(0, 1)]
    assert [each["layer"] for each in (*reported["hidden"], *reported["cross_queries"])] == [0, 0]
    assert (reported["logprobs"]["max_abs_diff"], reported["logprobs"]["atol"]) == (0.25, 1e-4)


@pytest.fixture
async def admin_client(
    tmp_path: Path, tiny_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[Client]:
    add(tmp_path, "org/a", tiny_artifact)
    async with serving_repository(tmp_path, api_keys="user") as admin_client:
        yield admin_client


USER = {"authorization": "Bearer user"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"version": 3}, "version"),
        ({"version": ""}, "version"),
        ({"versions": "3"}, "versions"),
        ({"targets": [{"model": "org/a", "share": 0.5}]}, "targets"),
        ({"target": "org/a", "version": "1"}, "makes an alias"),
        ({"target": "org/a"}, "org/a is not loaded"),
        ({"shadow_share": 0.1}, "shadow_share"),
        ([], "body"),
    ],
)
async def test_a_wrong_body_is_refused(admin_client: Client, body: Any, says: str) -> None:
    reply = await admin_client.put("/models/prod", json=body, headers=ADMIN)
    assert_problem(reply, 422, says)


async def test_an_alias_is_no_models_name(admin_client: Client) -> None:
    await admin_client.put("/models/org/a", json={}, headers=ADMIN)
    whole = {"target": "org/a"}
    reply = await admin_client.put("/models/org/a", json=whole, headers=ADMIN)
    assert_problem(reply, 422, "is the name of a model")
    await admin_client.put("/models/prod", json=whole, headers=ADMIN)
    reply = await admin_client.put("/models/live", json={"target": "prod"}, headers=ADMIN)
    assert_problem(reply, 422, "target: prod is an alias")
    reply = await admin_client.put("/models/prod", json={}, headers=ADMIN)
    assert_problem(reply, 422, "prod is an alias: load its model", error_type="Backend")


async def test_an_alias_does_not_hide_a_model_that_is_not_loaded_or_a_version(
    admin_client: Client, tmp_path: Path, tiny_artifact: Artifact
) -> None:
    add(tmp_path, "b", tiny_artifact)
    await admin_client.put("/models/org/a", json={}, headers=ADMIN)
    whole = {"target": "org/a"}
    reply = await admin_client.put("/models/b", json=whole, headers=ADMIN)
    assert_problem(reply, 422, "b is the name of a model")
    for name in ("", "a%0Ab", "x" * 513, "org/a@1"):
        reply = await admin_client.put(f"/models/{name}", json=whole, headers=ADMIN)
        assert_problem(reply, 422, "an alias needs 1 to 512 printable characters without @")


async def test_only_admins_see_the_folder_in_the_reason_of_a_failed_load(
    admin_client: Client, tmp_path: Path
) -> None:
    (tmp_path / "org/a" / MANIFEST).write_text("{}", encoding="utf-8")
    assert str(tmp_path) in (await admin_client.put("/models/org/a", json={}, headers=ADMIN)).text
    said = {}
    for who, headers in (("admin", ADMIN), ("user", USER)):
        (version,) = (await admin_client.get("/models/org/a", headers=headers)).json()["versions"]
        assert version["state"] == "failed"
        said[who] = version["reason"]
    assert str(tmp_path) in said["admin"]
    assert said["user"] == "cannot be loaded: the service's log has the reason"


async def test_a_repository_that_is_gone_is_not_named(
    admin_client: Client, tmp_path: Path, log: Log
) -> None:
    shutil.rmtree(tmp_path)
    reply = await admin_client.get("/models/org/a", headers=USER)
    problem = assert_problem(reply, 422, "cannot be read", error_type="Backend")
    assert str(tmp_path) not in problem["detail"]
    assert str(tmp_path) in log.text
    encoded = await admin_client.post(
        "/encode", json={"inputs": "a", "model": "org/a"}, headers=USER
    )
    assert_problem(encoded, 503, "org/a cannot be loaded", "Unhealthy")
    listed = await admin_client.get("/v1/models", headers=USER)
    assert (listed.status_code, listed.json()["data"]) == (200, [])


async def test_errors_before_the_only_model_is_loaded_keep_their_status(
    admin_client: Client,
) -> None:
    reply = await admin_client.post("/encode", json={"inputs": 1}, headers=USER)
    assert_problem(reply, 422, "inputs")


async def test_several_workers_take_no_commands(tmp_path: Path, tiny_artifact: Artifact) -> None:
    add(tmp_path, "a", tiny_artifact)
    says = "this service has 2 workers, and models are loaded"
    async with serving_repository(tmp_path, workers=2) as admin_client:
        assert (await encode(admin_client, "a")).status_code == 200, "each worker loads on demand"
        for reply in (
            await admin_client.put("/models/a", json={}, headers=ADMIN),
            await admin_client.put("/models/b", json={"target": "a"}, headers=ADMIN),
            await admin_client.delete("/models/a", headers=ADMIN),
        ):
            assert_problem(reply, 422, says)
        for command in ("load", "unload"):
            reply = await admin_client.post(f"/v2/repository/models/a/{command}", headers=ADMIN)
            assert (reply.status_code, says in reply.json()["error"]) == (400, True)
        assert (await admin_client.post("/v2/repository/index", headers=ADMIN)).status_code == 200
        assert await states(admin_client, "a") == {"1": "serving"}


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc", "org", "org/", "a%00b", "%2E%2E", "org/a/", "é", "x" * 3000]
)
async def test_names_that_are_not_of_the_repository(admin_client: Client, name: str) -> None:
    reply = await admin_client.put(f"/models/{name}", json={}, headers=ADMIN)
    assert_problem(reply, 404, "the repository has no such model")
    assert_problem(await admin_client.get(f"/models/{name}", headers=USER), 404)
    assert_problem(await admin_client.delete(f"/models/{name}", headers=ADMIN), 404)
