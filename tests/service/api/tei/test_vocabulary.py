"""`GET /vocabulary`: the tokens of sparse vectors' indices, kept by clients, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from service.api.tei.vocabulary import TOKEN_BYTES, VocabularyQuery, vocabulary
from tests.service.api.tei.tasks import SPARSE, serving_task
from tests.service.harness import request_context, state_of

pytestmark = pytest.mark.anyio


async def test_every_token_stands_at_its_id(
    client: httpx.AsyncClient, artifact: Artifact, small_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    response = await client.get("/vocabulary")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == tokenizer.convert_ids_to_tokens(range(30522))
    some = await client.get("/vocabulary?index=1012&index=2054&index=0&index=1012")
    assert some.json() == [".", "what", "[PAD]", "."]
    assert response.headers["etag"] == some.headers["etag"] == f'"{artifact.sha256[:32]}"'
    again = {"if-none-match": response.headers["etag"]}
    for path in ("/vocabulary", "/vocabulary?index=7"):
        kept = await client.get(path, headers=again)
        assert (kept.status_code, kept.content) == (304, b"")
        assert kept.headers["etag"] == response.headers["etag"]
        assert kept.headers["cache-control"] == "no-cache"


async def test_the_bytes_are_held_until_the_last_is_sent(artifact: Artifact) -> None:
    held = []

    async def send(message: Any) -> None:
        held.append((message["type"], replies.held))

    async with serving_task(artifact, SPARSE) as client:
        replies = state_of(client.app).replies
        context = request_context()
        scope: Any = {"type": "http", "app": client.app, "headers": [], "context": context}
        response = await vocabulary(VocabularyQuery(index=[7, 8]), Request(scope))
        await response(scope, client.get, send)
        assert replies.held == 0
    assert held == [(f"http.response.{part}", 2 * TOKEN_BYTES) for part in ("start", "body")]


@pytest.mark.parametrize("query", ["index=30522", "index=-1", "index=a", "index=", "token=the"])
async def test_what_is_no_index_is_teis_422(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/vocabulary?index=1&{query}")
    assert response.status_code == 422
    assert response.json().keys() == {"error", "error_type"}
    if query in ("index=30522", "index=-1"):
        assert response.json()["error"] == (
            "index[1] is not in 0 … 30521; indices of method bm42 are hashes of stems, which have "
            "no vocabulary"
        )


async def test_an_id_without_a_token_is_null_and_a_large_vocabulary_refused(
    artifact: Artifact,
) -> None:
    config = artifact.manifest.config.model_copy(update={"vocab_size": 30600})
    manifest = artifact.manifest.model_copy(update={"config": config})
    wider = Artifact(artifact.folder, manifest, artifact.sha256)
    async with serving_task(wider, SPARSE, max_response_bytes=1024) as client:
        some = await client.get("/vocabulary?index=30521&index=30599")
        whole = await client.get("/vocabulary")
        assert state_of(client.app).replies.held == 0
    assert some.json() == ["##～", None]
    assert whole.status_code == 413
    assert "name some by `index`" in whole.json()["error"]
