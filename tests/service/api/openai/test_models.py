"""`GET /v1/models` in OpenAI's form."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from service.api.infinity.models import NOT_LOADED
from tests.service.harness import serving
from tests.service.repositories import add, encode, serving_repository
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio


async def test_the_list_has_openais_form(artifact: Artifact) -> None:
    """https://platform.openai.com/docs/api-reference/models/list"""
    names = ["z/first", "a", "a b"]
    artifacts = [variant(artifact, name, 8) for name in names]
    async with serving(artifacts, [fake_of(one) for one in artifacts]) as client:
        answer = await client.get("/v1/models")
        reply = answer.json()
        assert (answer.status_code, reply.keys()) == (200, {"object", "data"})
        assert reply["object"] == "list"
        assert [one["id"] for one in reply["data"]] == names
        for one in reply["data"]:
            assert one.keys() == {"id", "object", "created", "owned_by", "outputs", "modalities"}
            assert (one["object"], type(one["owned_by"])) == ("model", str)
            assert type(one["created"]) is int
            assert 0 < time.time() - one["created"] < 10 * 365 * 24 * 3600


async def test_one_model_is_a_list_of_one(artifact: Artifact) -> None:
    async with serving(artifact, fake_of(artifact)) as client:
        (one,) = (await client.get("/v1/models")).json()["data"]
        assert one["id"] == artifact.manifest.model


async def test_a_model_is_found_by_its_name(artifact: Artifact) -> None:
    """Names may have slashes; another is OpenAI's 404, also where one model alone is served."""
    artifacts = [variant(artifact, name, 8) for name in ("z/first", "a b")]
    for served in (artifacts, artifacts[:1]):
        async with serving(served, [fake_of(one) for one in served]) as client:
            for one in (await client.get("/v1/models")).json()["data"]:
                assert (await client.get(f"/v1/models/{one['id']}")).json() == one
            missing = await client.get("/v1/models/first")
            assert (missing.status_code, missing.json()["error"]["code"]) == (
                404,
                "model_not_found",
            )


async def test_aliases_are_listed_and_answered_by_their_model(artifact: Artifact) -> None:
    """A reply names the model that computed it; `--served-model-name` names it anew."""
    artifacts = [variant(artifact, "a", 8), variant(artifact, "b", 16)]
    settings = {
        "served_model_name": ("z/first", "second"),
        "alias": ("text-embedding-3-small=second",),
    }
    async with serving(artifacts, [fake_of(one) for one in artifacts], **settings) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        names = ["z/first", "second", "text-embedding-3-small"]
        assert [one["id"] for one in listed] == names
        for one in listed:
            assert (await client.get(f"/v1/models/{one['id']}")).json() == one
        assert [one["id"] for one in (await client.get("/models")).json()["data"]] == names
        body = {"input": "a", "model": "text-embedding-3-small"}
        answer = await client.post("/v1/embeddings", json=body)
        assert len(answer.json()["data"][0]["embedding"]) == 16
        assert answer.json()["model"] == answer.headers["x-model"] == "second"
        missing = await client.post("/v1/embeddings", json=body | {"model": "a"})
        assert missing.status_code == 404
        assert "text-embedding-3-small" in missing.json()["error"]["message"]


async def test_models_that_are_loaded_on_demand_are_listed(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    """Both lists have them before and after the load, with the time of the newest version."""
    for place, created in (("a", 1000), ("org/b/1", 2000), ("org/b/2", 3000)):
        os.utime(add(tmp_path, place, tiny_artifact) / MANIFEST, (created, created))
    expected = [("a", 1000), ("org/b", 3000)]
    async with serving_repository(tmp_path) as client:
        for outputs, backends in (
            ([None, None], [NOT_LOADED, NOT_LOADED]),
            ([["tokens", "pooled"], None], ["fake", NOT_LOADED]),
        ):
            listed = (await client.get("/v1/models")).json()["data"]
            assert [(one["id"], one["created"]) for one in listed] == expected
            assert [one["outputs"] for one in listed] == outputs
            assert (await client.get("/v1/models/org/b")).json() == listed[1]
            infinitys = (await client.get("/models")).json()["data"]
            assert [(one["id"], one["created"]) for one in infinitys] == expected
            assert [one["backend"] for one in infinitys] == backends
            assert (await encode(client, listed[0]["id"])).status_code == 200
    async with serving_repository(tmp_path, on_demand=False) as client:
        assert (await client.get("/v1/models")).json()["data"] == []
        assert (await client.get("/v1/models/a")).status_code == 404
