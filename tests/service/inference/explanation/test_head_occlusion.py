"""Which texts are encoded to switch each head off once, and what is made of their vectors."""

from __future__ import annotations

import numpy as np
import pytest

from service.engines.contract import Pooling, TextTask
from service.engines.fake import FakeEngine
from service.inference.explanation.head_occlusion import (
    HeadOcclusion,
    head_occlusion_bytes,
    head_occlusion_tokens,
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
    vectors = np.empty((2, *SHAPE, CONFIG.hidden_size), np.float32)
    occlusion = HeadOcclusion(texts, (POOLING, POOLING), lambda vector: 2 * vector, vectors)
    with batching(engine) as (scheduler, _):
        await occlude(scheduler, ANYBODY, Timings(0, 0.0, 0.0), occlusion.jobs())
    found = occlusion.similarities()
    assert found.shape == SHAPE
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
    vectors = np.empty((2, *SHAPE, 7), np.float32)
    jobs = HeadOcclusion(texts, (POOLING, POOLING), lambda vector: vector, vectors).jobs()
    tokens = sum(head_occlusion_tokens(length, CONFIG) for length in (5, 3))
    assert sum(task.tokens for task, _ in jobs) == tokens
    assert head_occlusion_bytes(7, CONFIG) == vectors.nbytes
