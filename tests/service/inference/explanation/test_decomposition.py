"""Shares of input tokens in a text's vector, of one encoder or two, and their cost."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertModel

from model.artifact.manifest import Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.config.encoder import EncoderConfig
from model.decomposition.layers import decomposed
from model.numerics.pooling import PoolingModes
from model.numerics.vector_modules import Dense
from model.runtimes.pytorch import load_modules
from service.engines.contract import DecomposeTask, Output, Pooling, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.errors import EngineFailed, ReplyTooLarge
from service.inference.encoding import PreparedTexts
from service.inference.explanation import decomposition
from service.inference.explanation.decomposition import (
    ASSUMED,
    MEASURED_TOKENS,
    DecomposedText,
    check_memory,
    decompose,
    decomposition_bytes,
    pair_shares,
    part_cost,
    step_tokens,
)
from service.inference.explanation.tower import ExplainOptions, Tower
from service.inference.timings import Timings
from service.scheduler.call import ANYBODY, Call
from service.scheduler.scheduler import Scheduler
from tests.service.harness import CONFIG, AnsweringEngine, GatedEngine, batching, tokenized, until
from tests.service.scheduler.requests import FakeClock

pytestmark = pytest.mark.anyio


MEAN = Pooling(2, "mean")


def of(
    scheduler: Scheduler,
    length: int = 9,
    pooling: Pooling = MEAN,
    config: EncoderConfig = CONFIG,
    caller: Call = ANYBODY,
) -> Coroutine[Any, Any, DecomposedText]:
    text = tokenized(length, seed=1)
    prepared = PreparedTexts([text], caller, scheduler, Timings(length, 0.0, 0.0))
    return decompose(prepared, config, text, pooling, 1.2)


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
        found = await of(scheduler, 17, pooling, config=artifact.manifest.config)
    reference = BertModel.from_pretrained(
        small_checkpoint, attn_implementation="eager", dtype=torch.float32, add_pooling_layer=False
    )
    with torch.inference_mode():
        ids, segments = (torch.from_numpy(x)[None] for x in (text.input_ids, text.segment_ids))
        hidden = reference(ids, token_type_ids=segments, output_hidden_states=True).hidden_states
        counted = hidden[layer][0, first:].numpy()
        whole = decomposed(load_modules(artifact).encoder, hidden[0][0])[:, 1:].numpy()
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
            found.append(await of(scheduler))
            steps = sum(len(lengths) for _, lengths, _ in recorder.finished)
            assert steps == {10: 2 + 9 + 9, 40: 2 + 2 * 2, 10**6: 2 + 2}[tokens]
    for other in found[1:]:
        np.testing.assert_allclose(other.shares, found[0].shares, rtol=1e-5)
        np.testing.assert_allclose(other.shares.sum(axis=0), other.pooled, rtol=1e-4)


async def test_others_get_their_turn_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposition, "STEP_TOKENS", 10)
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=10) as (scheduler, _):
        long = asyncio.create_task(of(scheduler, caller=Call("long")))
        engine.let_through(2)
        await until(lambda: scheduler.lanes["attention"].queued_texts >= 8)
        begun = 3  # the third batch waits
        await until(lambda: len(engine.batches) == begun)
        task = TextTask(np.arange(4), np.zeros(4, np.int64), hidden_layers=(0,))
        short = asyncio.create_task(scheduler.submit("attention", [task], Call("short")))
        await until(lambda: scheduler.lanes["attention"].queued_texts >= 9)
        engine.let_through(3)
        await short
        assert len(engine.batches) <= begun + 3
        assert not long.done()
        engine.let_through()
        await long


async def test_pooling_that_looks_at_one_token_computes_its_row_alone() -> None:
    with batching(FakeEngine(CONFIG)) as (scheduler, recorder):
        whole = await of(scheduler)
        before = len(recorder.finished)
        found = await of(scheduler, pooling=Pooling(2, "cls", 4))
    last = recorder.finished[-1][1]
    assert last == [step_tokens(1, 10, CONFIG, 1.2)]
    assert len(recorder.finished) - before == before
    assert found.shares.shape == whole.shares.shape
    np.testing.assert_allclose(found.shares.sum(axis=0), found.pooled, rtol=1e-4)


async def test_what_was_admitted_is_not_refused_halfway() -> None:
    with batching(FakeEngine(CONFIG), max_queue_tokens=2) as (scheduler, _):
        found = await of(scheduler)
    np.testing.assert_allclose(found.shares.sum(axis=0), found.pooled, rtol=1e-4)


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
        await of(scheduler)


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


OPTIONS = ExplainOptions(1, None, pairs=False, occlusion=True, decomposition=False, heads=False)
RNG = np.random.default_rng(0)
SIZE = CONFIG.hidden_size
WEIGHT = RNG.standard_normal((3, SIZE)).astype(np.float32)


def tower(**changes: Any) -> Tower:
    dense = Dense(in_features=SIZE, out_features=3, bias=False, activation="Identity")
    sentence = SentenceConfig(pooling="cls", modules=(dense,), normalize=True, max_length=9)
    vectors = TextVectors(sentence, SIZE, {"0.linear.weight": WEIGHT})
    inference: Any = SimpleNamespace(config=CONFIG, sentence=sentence, vectors=vectors)
    prepared: Any = SimpleNamespace()
    return Tower(inference, replace(OPTIONS, **changes), prepared)


def test_a_forward_pass_has_the_pixels_and_only_the_states_that_are_needed() -> None:
    pixels = np.ones((4, 2), np.float32)
    picture = replace(tokenized(4), pixels=pixels)
    task = tower().whole_task(picture)
    assert task.pixels is pixels
    assert (task.hidden_layers, task.pooling) == ((1,), tower().pooling(picture))
    assert tower(occlusion=False).whole_task(tokenized(4)).hidden_layers == ()
    assert tower(pooling="mean").pooling(picture).mode == "mean"


def test_states_are_projected_as_pooled_vectors_are() -> None:
    states = RNG.standard_normal((5, SIZE)).astype(np.float32)
    np.testing.assert_allclose(tower().projected(states), states @ WEIGHT.T, atol=1e-6)
    vector = WEIGHT @ states[0]
    unit = vector / np.linalg.norm(vector)
    np.testing.assert_allclose(tower().vector(Output(pooled=states[0])), unit, atol=1e-6)
    decomposed = tower().decomposed(states.sum(axis=0), states)
    np.testing.assert_allclose(decomposed.shares.sum(axis=0), decomposed.pooled, atol=1e-5)


async def test_it_is_the_time_of_a_part_beside_that_of_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand tokens a second; 5 ms a row of 33 parts in one of two layers."""
    clock, steps = FakeClock(monkeypatch), []

    class Clocked(FakeEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            steps.extend(task for task in tasks if isinstance(task, DecomposeTask))
            clock.now += 7.0 if len(steps) == 1 else 0.005 * MEASURED_TOKENS
            return super().run(tasks)

    engine = Clocked(CONFIG, concurrency=2)
    engine.measured = [(10, 0.01), (1000, 1.0)]
    inference: Any = types.SimpleNamespace(part_costs={}, config=CONFIG)
    with batching(engine, max_batch_tokens=1000) as (scheduler, _):
        found = await part_cost(inference, scheduler, ANYBODY)
        assert found == pytest.approx(0.005 / 33 * 2 / 0.001)
        assert len(steps) == 2
        assert await part_cost(inference, scheduler, ANYBODY) == found
        assert len(steps) == 2


async def test_an_engine_that_is_not_measured_has_an_assumed_cost() -> None:
    inference: Any = types.SimpleNamespace(part_costs={}, config=CONFIG)
    with batching(FakeEngine(CONFIG)) as (scheduler, recorder):
        assert await part_cost(inference, scheduler, ANYBODY) == ASSUMED
        assert not recorder.finished
