"""Requests of one worker to the others, over UNIX sockets."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from service.health.readiness import SILENT, Answers, Peers

SECONDS = 1.0
"""Seconds after which a worker counts as silent: the others answer far earlier."""


@pytest.mark.anyio
async def test_workers_ask_each_other(tmp_path: Path) -> None:
    workers = [Peers(tmp_path, index, 4) for index in range(4)]
    asked: list[int] = []
    late = asyncio.Event()

    def answers(index: int, answer: str) -> Answers:
        async def ready() -> str:
            asked.append(index)
            if index == 2:
                await late.wait()
            return answer

        return {"ready": ready}

    async with contextlib.AsyncExitStack() as stack:
        for index, answer in enumerate(["", "the engine failed", "never said"]):
            await stack.enter_async_context(workers[index].answering(answers(index, answer)))
        assert await workers[0].ask("ready", SECONDS) == {1: "the engine failed", 2: SILENT}
        assert sorted(asked) == [1, 2]
        assert await workers[3].ask("ready", SECONDS) == {0: "", 1: "the engine failed", 2: SILENT}
        late.set()
        await asyncio.sleep(0.1)
    assert await workers[0].ask("ready", SECONDS) == {}
    async with workers[1].answering(answers(1, "back")):
        assert await workers[0].ask("ready", SECONDS) == {1: "back"}
