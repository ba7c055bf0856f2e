"""Texts that are encoded to switch each head off once, and the results of their vectors."""

from __future__ import annotations

import numpy as np
import pytest

from service.engines.contract import Pooling, TextTask
from service.engines.fake import FakeEngine
from service.inference.explanation.head_occlusion import (
    HeadOcclusion,
    head_occlusion_bytes,
)
from service.inference.explanation.occlusion import cosine, occlude
from service.inference.timings import Timings
from service.scheduler.submission import ANYBODY
from tests.service.harness import CONFIG, batching, tokenized

pytestmark = pytest.mark.anyio
POOLING = Pooling(CONFIG.num_hidden_layers, "mean")
SHAPE = CONFIG.num_hidden_layers, CONFIG.num_attention_heads


async def test_each_head_is_switched_off_in_both_texts() -> None:
    engine, texts = FakeEngine(CONFIG), (tokenized(5), tokenized(3, seed=1))
    found = np.full(SHAPE, np.nan, np.float32)
    occlusion = HeadOcclusion(texts, (POOLING, POOLING), lambda vector: 2 * vector, found)
    with batching(engine) as (scheduler, _):
        await occlude(scheduler, ANYBODY, Timings(0, 0.0, 0.0), occlusion.jobs())
    for place in np.ndindex(*SHAPE):
        pooled = []
        for text in texts:
            ids, segments = text.input_ids, text.segment_ids
            task = TextTask(ids, segments, pooling=POOLING, ablated=(place,))
            vector = engine.expected(task).pooled
            assert vector is not None
            pooled.append(vector)
        assert found[place] == pytest.approx(cosine(*pooled))
    assert len(np.unique(found)) == found.size


def test_its_cost() -> None:
    texts = tokenized(5), tokenized(3)
    found = np.full(SHAPE, np.nan, np.float32)
    occlusion = HeadOcclusion(texts, (POOLING, POOLING), lambda vector: vector, found)
    jobs = list(occlusion.jobs())
    assert sum(task.tokens for task, _ in jobs) == (5 + 3) * found.size
    assert head_occlusion_bytes(7, CONFIG) == np.empty((2, *SHAPE, 7), np.float32).nbytes


def test_a_head_without_one_of_the_texts_is_not_computed() -> None:
    found = np.full(SHAPE, np.nan, np.float32)
    occlusion = HeadOcclusion(
        (tokenized(5), tokenized(3)), (POOLING, POOLING), lambda vector: vector, found
    )
    one, other = np.array([3, 4], np.float32), np.array([1, 0], np.float32)
    occlusion.take((1, 0), one)
    occlusion.take((0, 1), other)
    assert np.isnan(found).all()
    occlusion.take((1, 0), other)
    assert found[1, 0] == pytest.approx(0.6)
    assert np.isnan(found).sum() == found.size - 1
