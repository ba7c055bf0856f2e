"""Results are freed at once after delivery, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from tests.service.harness import CONFIG, batching, text, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watched(FakeEngine):
    """Engine that holds weak references to its outputs."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.outputs: list[weakref.ref[np.ndarray]] = []

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        outputs = super().run(tasks)
        self.outputs += [weakref.ref(array) for output in outputs for array in output.hidden]
        return outputs

    def kept(self) -> int:
        return sum(reference() is not None for reference in self.outputs)


async def test_an_answered_request_keeps_nothing() -> None:
    engine = Watched()
    with batching(engine) as (batcher, _):
        for _ in range(5):
            await batcher.submit("encode", [text(8, hidden_layers=(0, 1)) for _ in range(3)])
        await until(lambda: batcher._dispatcher.idle == engine.concurrency)
        assert len(engine.outputs) == 30
        await until(lambda: engine.kept() == 0, seconds=2)


async def test_nor_does_one_whose_texts_were_reduced() -> None:
    engine = Watched()
    with batching(engine) as (batcher, _):
        tasks = [text(8, hidden_layers=(0, 1)) for _ in range(3)]
        done = await batcher.resume("attention", tasks, [lambda output: len(output.hidden)] * 3)
        assert [item.value for item in done] == [2, 2, 2]
        await until(lambda: engine.kept() == 0, seconds=2)
