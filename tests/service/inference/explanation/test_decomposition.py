"""Shares of input tokens in a text's vector, through the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from model.artifact.manifest import Artifact
from model.decomposition.encoder import decomposed
from model.numerics.pooling import PoolingModes
from model.runtimes.pytorch import load_encoder
from service.engines.contract import Output, Pooling, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import EngineFailed, ReplyTooLarge
from service.inference.explanation import decomposition
from service.inference.explanation.decomposition import (
    DecomposedText,
    TextDecomposition,
    check_memory,
    decomposition_bytes,
    decomposition_tokens,
    pair_shares,
    step_tokens,
)
from service.inference.timings import Timings
from service.scheduler.scheduler import Scheduler
from service.scheduler.submission import Caller
from tests.service.harness import CONFIG, AnsweringEngine, GatedEngine, batching, tokenized, until

pytestmark = pytest.mark.anyio
MEAN = Pooling(2, "mean")


def of(
    scheduler: Scheduler, length: int = 9, pooling: Pooling = MEAN, **other: Any
) -> TextDecomposition:
    text = tokenized(length, seed=1)
    config = other.pop("config", CONFIG)
    timings = Timings(length, 0.0, 0.0)
    return TextDecomposition(scheduler, config, text, pooling, timings, 1.2, **other)


@pytest.mark.parametrize(
    ("mode", "layer", "first"),
    [
        ("mean", 2, 0),
        ("mean", 2, 3),
        ("cls", 2, 0),
        ("max", 1, 0),
        (("last", "cls"), 2, 2),
        ("weightedmean", 0, 0),
    ],
    ids=str,
)
async def test_shares_sum_to_transformers_vector(
    mode: PoolingModes,
    layer: int,
    first: int,
    artifact: Artifact,
    onnx_engine: OnnxEngine,
    small_checkpoint: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle pools transformers' hidden states by numpy: mean, first, last and maximum."""
    monkeypatch.setattr(decomposition, "STEP_TOKENS", 30)
    text, pooling = tokenized(17, seed=1), Pooling(layer, mode, first)
    with batching(onnx_engine) as (scheduler, _):
        found = await of(scheduler, 17, pooling, config=artifact.manifest.config).result()
    reference = BertModel.from_pretrained(
        small_checkpoint, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    )
    with torch.inference_mode():
        ids, segments = (torch.from_numpy(x)[None] for x in (text.input_ids, text.segment_ids))
        hidden = reference(ids, token_type_ids=segments, output_hidden_states=True).hidden_states
        counted = hidden[layer][0, first:].numpy()
        whole = decomposed(load_encoder(artifact), hidden[0][0])[:, 1:].numpy()
    rising = np.arange(first + 1, 18, dtype=np.float32)
    vectors = {
        "mean": counted.mean(axis=0),
        "cls": counted[0],
        "last": counted[-1],
        "max": counted.max(axis=0),
        "weightedmean": rising @ counted / rising.sum(),
    }
    modes = (mode,) if isinstance(mode, str) else mode
    expected = np.concatenate([vectors[each] for each in modes])
    np.testing.assert_allclose(found.pooled, expected, atol=2e-5)
    np.testing.assert_allclose(found.shares.sum(axis=0), expected, atol=2e-5)
    if pooling == MEAN:
        np.testing.assert_allclose(found.shares, whole.mean(axis=0), atol=2e-5)


async def test_shares_of_pairs_sum_to_the_cosine() -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((n, 6), np.float32) for n in (3, 5))
    texts = [DecomposedText(shares.sum(axis=0), shares) for shares in (one, other)]
    found = pair_shares(*texts)
    p, q = one.sum(axis=0), other.sum(axis=0)
    cosine = p @ q / np.linalg.norm(p) / np.linalg.norm(q)
    assert found.shape == (3, 5)
    np.testing.assert_allclose(found.sum(), cosine, atol=1e-6)
    np.testing.assert_allclose(
        found[1, 2] / found[0, 4], one[1] @ other[2] / (one[0] @ other[4]), rtol=1e-4
    )
    nothing = DecomposedText(np.zeros(6, np.float32), np.zeros((2, 6), np.float32))
    assert not pair_shares(nothing, texts[0]).any()


async def test_steps_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for tokens in (10, 40, 10**6):
        monkeypatch.setattr(decomposition, "STEP_TOKENS", tokens)
        with batching(FakeEngine(CONFIG)) as (scheduler, recorder):
            found.append(await of(scheduler).result())
            steps = sum(len(lengths) for _, lengths, _ in recorder.finished)
            assert steps == {10: 2 + 9 + 9, 40: 2 + 2 * 2, 10**6: 2 + 2}[tokens]
    for other in found[1:]:
        np.testing.assert_allclose(other.shares, found[0].shares, rtol=1e-5)
        np.testing.assert_allclose(other.shares.sum(axis=0), other.pooled, rtol=1e-4)


async def test_others_get_their_turn_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposition, "STEP_TOKENS", 10)
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=10) as (scheduler, _):
        long = asyncio.create_task(of(scheduler, caller=Caller("long")).result())
        engine.let_through(2)
        await until(lambda: scheduler.lanes["attention"].queued_texts >= 8)
        begun = 3  # the third batch waits
        await until(lambda: len(engine.batches) == begun)
        task = TextTask(np.arange(4), np.zeros(4, np.int64), hidden_layers=(0,))
        short = asyncio.create_task(scheduler.submit("attention", [task], Caller("short")))
        await until(lambda: scheduler.lanes["attention"].queued_texts >= 9)
        engine.let_through(3)
        await short
        assert len(engine.batches) <= begun + 3
        assert not long.done()
        engine.let_through()
        await long


async def test_pooling_that_looks_at_one_token_computes_its_row_alone() -> None:
    with batching(FakeEngine(CONFIG)) as (scheduler, recorder):
        whole = await of(scheduler).result()
        before = len(recorder.finished)
        found = await of(scheduler, pooling=Pooling(2, "cls", 4)).result()
    last = recorder.finished[-1][1]
    assert last == [step_tokens(1, 10, CONFIG, 1.2)]
    assert len(recorder.finished) - before == before
    assert found.shares.shape == whole.shares.shape
    np.testing.assert_allclose(found.shares.sum(axis=0), found.pooled, rtol=1e-4)


async def test_what_was_admitted_is_not_refused_halfway() -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=2) as (scheduler, _):
        found = await of(scheduler).result()
    np.testing.assert_allclose(found.shares.sum(axis=0), found.pooled, rtol=1e-4)


def test_the_cost_is_of_the_layers_that_are_gone_through() -> None:
    assert decomposition_tokens(40, 0, CONFIG, 1.2) == 0
    assert decomposition_tokens(40, 2, CONFIG, 1.2) == 2 * decomposition_tokens(40, 1, CONFIG, 1.2)
    assert decomposition_tokens(40, 1, CONFIG, 1.2) == pytest.approx(1.2 * 40 * 41 / 2)


async def test_an_engine_that_leaves_values_out_fails() -> None:
    def answer(tasks: Sequence[Task]) -> list[Output]:
        outputs = [FakeEngine(CONFIG).expected(task) for task in tasks]
        return [
            Output(decomposed=replace(output.decomposed, values=None))
            if output.decomposed
            else output
            for output in outputs
        ]

    with (
        batching(AnsweringEngine(answer)) as (scheduler, _),
        pytest.raises(EngineFailed, match="left out"),
    ):
        await of(scheduler).result()


def test_a_text_whose_shares_take_too_much_memory_is_refused() -> None:
    config = CONFIG.model_copy(update={"hidden_size": 768})
    limit = 2**29
    tokens = next(n for n in range(1, 1000) if decomposition_bytes(n, config) > limit)
    assert 200 < tokens < 300
    fits, too_long = tokenized(tokens - 1), tokenized(tokens + 30)
    check_memory([fits] * 4, (config, config), limit)
    with pytest.raises(
        ReplyTooLarge,
        match=rf"inputs\[1\]\[1\] has {tokens + 30} tokens: .*\(--max-bytes-in-flight\); "
        rf"texts of up to {tokens - 1} tokens fit",
    ) as refused:
        check_memory([fits, fits, fits, too_long], (config, config), limit)
    assert refused.value.status == 413
    assert not refused.value.retryable
