"""A process whose engine has failed for good answers its clients, logs the reason, and exits."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from testing.client import Lost, ask
from trials import oracle
from trials.servers import Service, stub

pytestmark = pytest.mark.e2e
HANG = {oracle.token_id("hang"): "hang"}


async def statuses(service: Service, *texts: str) -> list[int]:
    """Send all texts at once, and return their statuses; 0 for a closed connection."""

    async def status(text: str) -> int:
        body: Mapping[str, object] = {"inputs": text, "outputs": ["pooled"]}
        try:
            return (await ask(service.port, "/encode", body)).status
        except (Lost, OSError):
            return 0

    return await asyncio.gather(*map(status, texts))


async def outcome(
    engine: dict[str, Any], *texts: str, **settings: float
) -> tuple[list[int], int, str]:
    """Return the statuses, the exit code, and the log of the process."""
    async with stub(engine, ready=False, **settings) as service:
        async with asyncio.timeout(60):
            while (await statuses(service, "the water"))[0] == 0:
                await asyncio.sleep(0.05)
        found = await statuses(service, *texts)
        code = await service.end(20)
        return found, code, service.log


def test_a_batch_that_never_ends() -> None:
    """Requests that wait behind it are answered as well before the end."""
    texts = ("a hang", *["the water"] * 8)
    hanging = outcome({"faults": HANG}, *texts, batch_timeout_seconds=1.0)
    found, code, said = asyncio.run(hanging)
    assert found[0] == 504
    assert set(found) <= {200, 503, 504}
    assert code == 1
    assert "the fake engine hangs: a batch takes more than 1 s; the service ends" in said


async def stopped_while_it_hangs() -> int:
    """Stop the service while a batch hangs, and return the exit code."""
    async with stub({"faults": HANG}, drain_seconds=1) as service:
        hung = asyncio.create_task(statuses(service, "a hang"))
        while (await service.counts())["raised"] == 0:
            await asyncio.sleep(0.02)
        service.process.terminate()
        code = await service.end(30)
        await hung
        return code


def test_a_stop_does_not_wait_for_what_hangs() -> None:
    code = asyncio.run(stopped_while_it_hangs())
    assert code in (1, -signal.SIGTERM)
