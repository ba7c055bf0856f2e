"""Every route that may write many numbers as JSON writes them in small pieces, in its turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message

from model.artifact.manifest import Artifact
from service.api.wire import json_pieces, route
from service.api.wire.route import SEND_BYTES, _send
from service.engines.fake import FakeEngine
from service.http import turns
from service.http.turns import part_of
from tests.service.harness import serving

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
        for module in (turns, route):
            monkeypatch.setattr(module, "part_of", spied)
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
