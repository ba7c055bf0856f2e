"""Replies to 64 concurrent clients, in random batches, equal the replies to each text alone.

The trial `batching` does so for 20 000 texts.
"""

from __future__ import annotations

import asyncio
import random

import httpx
import numpy as np
import pytest

from testing.client import Connection, request
from tests.journeys.texts import all_texts

pytestmark = pytest.mark.e2e

CLIENTS, ROUNDS, EVERY = 64, 2, 6
"""Number of clients, of texts that each requests, and the step between the texts used."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(client: httpx.AsyncClient, text) -> tuple[list[int], np.ndarray]:
    """Return the ids and vector of a text; after a 429, retry when `retry-after` is over."""
    body = {"inputs": [text], "outputs": ["pooled"], "truncate": True}
    reply = await client.post("/encode", json=body)
    while reply.status_code == 429:
        await asyncio.sleep(int(reply.headers["retry-after"]))
        reply = await client.post("/encode", json=body)
    assert reply.status_code == 200, reply.text
    (result,) = reply.json()["results"]
    return result["token_ids"], np.array(result["pooled"])


@pytest.mark.anyio
async def test_each_reply_equals_the_texts_reply_alone(server):
    texts = all_texts()[::EVERY]
    generator = random.Random(0)
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=server, timeout=120, limits=limits) as client:
        alone = [await ask(client, text) for text in texts]

        async def one(_: int) -> int:
            answered = 0
            for _ in range(ROUNDS):
                i = generator.randrange(len(texts))
                ids, pooled = await ask(client, texts[i])
                assert ids == alone[i][0]
                np.testing.assert_allclose(pooled, alone[i][1], rtol=0, atol=1e-5)
                answered += 1
            return answered

        answered = await asyncio.gather(*(one(i) for i in range(CLIENTS)))
    assert sum(answered) == CLIENTS * ROUNDS


@pytest.mark.anyio
async def test_a_connection_outlives_the_time_for_which_clients_keep_it(server):
    async with await Connection.to(int(server.rpartition(":")[2])) as connection:
        assert (await connection.ask(request("/health/live"))).status == 200
        await asyncio.sleep(6)  # httpx keeps one for 5 seconds
        assert (await connection.ask(request("/health/live"))).status == 200
