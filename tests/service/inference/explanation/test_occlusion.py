"""Texts of an occlusion, and tokens that pairs match, against sentence-transformers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from model.artifact.manifest import Artifact
from model.export.serving import serving_copy
from service.api.wire.media import SAFETENSORS
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.inference.attention.stream import runs
from service.inference.encoding import PreparedTexts
from service.inference.explanation import occlusion
from service.inference.explanation.explanation import PairExplanation
from service.inference.explanation.occlusion import (
    Job,
    Occlusion,
    cosine,
    head_occlusion,
    head_occlusion_bytes,
    in_turn,
    occlude,
)
from service.inference.explanation.spans import Span, span_sums
from service.inference.explanation.tower import ExplainOptions, Tower
from service.inference.timings import Timings
from service.inference.tokenization.text import Text
from service.scheduler.call import ANYBODY
from service.scheduler.outputs import requested
from service.scheduler.scheduler import Scheduler
from tests.model.late_checkpoints import DOCUMENTS, QUERY
from tests.model.task_checkpoints import write_sparse_checkpoint
from tests.service.harness import (
    CONFIG,
    AnsweringEngine,
    GatedEngine,
    assert_problem,
    batching,
    serving,
    text,
    tokenized,
    until,
)

pytestmark = pytest.mark.anyio


OTHER = np.arange(1, 9, dtype=np.float32)


def occluded(
    length: int, first: int = 0, spans: Sequence[Span] = (), order: Sequence[int] | None = None
) -> Occlusion:
    options = ExplainOptions(2, "mean", *(False, True, False, False))
    sentence = SimpleNamespace(include_prompt=False)
    vectors = SimpleNamespace(finish=lambda pooled, _: pooled)
    inference: Any = SimpleNamespace(sentence=sentence, vectors=vectors)
    tower = Tower(inference, options, cast(Any, None))
    spans = spans or [Span(0, 0, (token,)) for token in range(length)]
    order = range(len(spans)) if order is None else order
    return tower.occlusion(replace(tokenized(length), prompt_tokens=first), spans, order, OTHER)


def asked_of(scheduler: Scheduler) -> PreparedTexts:
    return PreparedTexts([], ANYBODY, scheduler, Timings(0, 0.0, 0.0))


def _jobs(occlusions: list[Occlusion]) -> Iterator[Job]:
    return (job for one in occlusions for job in one.jobs())


async def test_each_token_is_a_text_without_it() -> None:
    engine, several = FakeEngine(CONFIG), [occluded(5, first=2), occluded(3), occluded(1)]
    with batching(engine) as (scheduler, _):
        prepared = asked_of(scheduler)
        await occlude(prepared, _jobs(several))
    for one, length, first in zip(several[:2], (5, 3), (2, 0), strict=True):
        text = tokenized(length)
        for token, found in enumerate(one.scores):
            left_out = (token,) if token >= first else ()
            task = TextTask(
                text.input_ids,
                text.segment_ids,
                pooling=Pooling(2, "mean", first, left_out),
                unseen=(token,),
            )
            pooled = engine.expected(task).pooled
            assert pooled is not None
            assert found == pytest.approx(cosine(pooled, OTHER))
    assert several[2].scores.tolist() == [0.0]  # no token is left to pool
    assert prepared.timings.inference_seconds > 0


async def test_a_span_is_left_out_as_a_whole_and_only_those_of_the_order_are() -> None:
    spans = [Span(0, 3, (1, 2)), Span(4, 5, (3,)), Span(6, 9, (0, 4)), Span(0, 9, (2, 3, 4))]
    one, engine = occluded(5, first=2, spans=spans, order=[2, 3, 0]), FakeEngine(CONFIG)
    tasks = [task for task, _ in one.jobs()]
    assert [task.unseen for task in tasks] == [(0, 4), (1, 2)]
    assert [task.pooling and task.pooling.left_out for task in tasks] == [(4,), (2,)]
    with batching(engine) as (scheduler, _):
        await occlude(asked_of(scheduler), one.jobs())
    for task, number in zip(tasks, (2, 0), strict=True):
        pooled = engine.expected(task).pooled
        assert pooled is not None
        assert one.scores[number] == pytest.approx(cosine(pooled, OTHER))
    assert np.isnan(one.scores[1])  # not in the order
    assert one.scores[3] == 0.0  # no token is left to pool


def test_texts_take_turns() -> None:
    jobs = [[(text(n), id)] * n for n in (1, 3, 2)]
    assert [task.tokens for task, _ in in_turn(jobs)] == [1, 3, 2, 3, 2, 3]


async def test_little_of_it_waits_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occlusion, "SLICE_TOKENS", 40)
    engine = GatedEngine()
    with batching(engine, max_batch_tokens=20) as (scheduler, _):
        several = [occluded(10) for _ in range(5)]
        occluding = occlude(asked_of(scheduler), _jobs(several))
        running = asyncio.create_task(occluding)
        await until(lambda: engine.batches)
        assert scheduler.lanes["attention"].queued_tokens <= 2 * 40
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert scheduler.lanes["attention"].queued_tokens == 0


async def test_a_failure_ends_it() -> None:
    def fail(_: object) -> None:
        raise EngineFailed("no")

    with (
        batching(AnsweringEngine(fail)) as (scheduler, _),
        pytest.raises(EngineFailed, match="no"),
    ):
        await occlude(asked_of(scheduler), occluded(4).jobs())


def test_the_cosine_of_nothing_is_0() -> None:
    assert cosine(OTHER, OTHER * 0) == 0
    assert math.isclose(cosine(OTHER, OTHER * 3), 1)


POOLING = Pooling(CONFIG.num_hidden_layers, "mean")
SHAPE = CONFIG.num_hidden_layers, CONFIG.num_attention_heads


def pooled(text: Text) -> TextTask:
    return TextTask(text.input_ids, text.segment_ids, pooling=POOLING)


def vector_of(output: Output) -> Floats:
    return requested(output.pooled)


async def test_each_head_is_switched_off_in_both_texts() -> None:
    engine, texts = FakeEngine(CONFIG), (tokenized(5), tokenized(3, seed=1))
    occlusion = head_occlusion([pooled(each) for each in texts], vector_of, CONFIG)
    with batching(engine) as (scheduler, _):
        await occlude(asked_of(scheduler), occlusion.jobs())
    found = occlusion.scores.reshape(SHAPE)
    for place in np.ndindex(*SHAPE):
        tasks = [replace(pooled(each), ablated=(place,)) for each in texts]
        vectors = [vector_of(engine.expected(task)) for task in tasks]
        assert found[place] == pytest.approx(cosine(*vectors))
    assert len(np.unique(found)) == found.size == occlusion.computed
    assert sum(task.tokens for task, _ in occlusion.jobs()) == (5 + 3) * found.size
    assert head_occlusion_bytes(7, CONFIG) == np.empty((2, *SHAPE, 7), np.float32).nbytes


def test_a_head_without_one_of_the_texts_is_not_computed() -> None:
    occlusion = head_occlusion([pooled(tokenized(5)), pooled(tokenized(3))], vector_of, CONFIG)
    stores = [store for _, store in occlusion.jobs()]
    one, other = Output(pooled=np.array([3, 4], np.float32)), Output(pooled=OTHER[:2])
    stores[0](one)
    stores[2](other)
    assert np.isnan(occlusion.scores).all()
    stores[1](other)
    assert occlusion.scores[0] == pytest.approx(11 / 5**1.5)
    assert occlusion.computed == 1


def test_what_comes_after_the_deadline_does_not_count() -> None:
    occlusion = occluded(5, order=[2, 0])
    late, after = (store for _, store in occlusion.jobs())
    late(Output(pooled=OTHER))
    occlusion.settle()
    after(Output(pooled=OTHER))
    assert occlusion.computed == 1
    np.testing.assert_allclose(occlusion.scores, [np.nan, np.nan, 1, np.nan, np.nan])


def test_neighbours_go_together_up_to_a_size() -> None:
    assert [*runs([4, 4, 2, 20, 1], lambda size: [size], [9])] == [[4, 4], [2], [20], [1]]
    of_both = runs([(1, 5), (1, 5), (3, 0)], lambda sizes: sizes, (4, 9))
    assert [*of_both] == [[(1, 5)], [(1, 5), (3, 0)]]
    assert [*runs([], len, [1])] == []


TOKENS = [Span(n, n + 1, (n,)) for n in range(3)]


def test_methods_agree_as_far_as_their_sums_do() -> None:
    matrix = np.diag(np.array([3, 2, 1], np.float32))
    losses = np.array([0.3, 0.2, 0.1], np.float32)
    found = PairExplanation(6.5, matrix, -matrix, (losses, losses), (TOKENS, TOKENS))
    assert found.agreement() == {"pairs": pytest.approx(1), "decomposition": pytest.approx(-1)}
    assert found.error(matrix) == pytest.approx(0.5)
    two, ones = TOKENS[:2], np.ones((2, 2), np.float32)
    constant = PairExplanation(1.0, ones, None, (losses[:2], losses[:2]), (two, two))
    assert constant.agreement() == {"pairs": None}
    assert PairExplanation(1.0, matrix).agreement() == {}


def test_agreement_is_over_the_spans_that_were_occluded() -> None:
    """Expected: scipy's Spearman of the sums by hand."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((5, 3)).astype(np.float32)
    one = [Span(0, 3, (0, 2)), Span(4, 5, (1,)), Span(6, 9, (3, 4))]
    losses = np.array([0.3, np.nan, -0.2], np.float32), np.array([0.1, 0.2, np.nan], np.float32)
    found = PairExplanation(0.5, matrix, None, losses, (one, TOKENS))
    rows, columns = matrix.sum(axis=1), matrix.sum(axis=0)
    sums = [rows[0] + rows[2], rows[3] + rows[4], columns[0], columns[1]]
    expected = spearmanr(sums, [0.3, -0.2, 0.1, 0.2]).statistic
    assert found.agreement() == {"pairs": pytest.approx(expected)}
    np.testing.assert_allclose(span_sums(one, rows)[2], rows[3] + rows[4])
    nothing = np.full(3, np.nan, np.float32)
    late = PairExplanation(0.5, matrix, matrix * np.nan, (nothing, nothing), (one, TOKENS))
    assert late.agreement() == {"pairs": None, "decomposition": None}


def test_a_pair_is_partial_where_less_is_computed_than_is_wanted() -> None:
    losses = np.array([0.3, np.nan, -0.2], np.float32), np.array([0.1, 0.2, np.nan], np.float32)
    heads = np.array([[0.1, np.nan]], np.float32)
    found = PairExplanation(
        0.5,
        decomposition=np.full((3, 3), np.nan, np.float32),
        occlusion=losses,
        heads=heads,
        wanted={"occlusion": 4, "decomposition": 1, "heads": 2},
    )
    assert found.computed == {"occlusion": 4, "decomposition": 0, "heads": 1}
    assert found.partial
    assert not PairExplanation(0.5, occlusion=losses, wanted={"occlusion": 4}).partial
    assert not PairExplanation(0.5).partial


async def test_matches_sum_to_max_sim(late_artifact: Artifact, late_checkpoint: Path) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    inputs = [[QUERY, document] for document in DOCUMENTS]
    async with serving(late_artifact) as client:
        response = await client.post("/explain", json={"inputs": inputs})
        binary = {"accept": SAFETENSORS}
        refused: list[tuple[dict[str, Any], dict[str, str], str]] = [
            ({"include": ["pairs"]}, {}, "only matches"),
            ({"layer": 0}, {}, "only matches"),
            ({"prompt_name": "query"}, {}, "prompt_name is not for this model"),
            ({}, binary, "matches are JSON"),
        ]
        for changes, headers, says in refused:
            body = {"inputs": inputs} | changes
            assert_problem(await client.post("/explain", json=body, headers=headers), 422, says)
    (query,) = reference.encode_query([QUERY])
    for found, document in zip(response.json()["results"], DOCUMENTS, strict=True):
        (theirs,) = reference.encode_document([document])
        products = np.asarray(query) @ np.asarray(theirs).T
        assert found["similarity"] == pytest.approx(products.max(axis=1).sum(), abs=1e-4)
        assert found["completeness_error"] < 1e-5
        scores = [match["score"] for match in found["matches"]]
        np.testing.assert_allclose(scores, products.max(axis=1), atol=1e-5)
        sizes = [len(text["tokens"]) for text in found["texts"]]
        assert [match["query"] for match in found["matches"]] == list(range(sizes[0]))
        assert max(match["document"] for match in found["matches"]) < sizes[1]


PAIR = ["the cat a b", "a cat . x y"]


async def test_the_tokens_that_made_shared_words(
    exported: Callable[..., Artifact], tmp_path: Path
) -> None:
    folder = write_sparse_checkpoint(tmp_path / "a")
    encoder = SparseEncoder(str(folder), device="cpu")
    vectors = encoder.encode(PAIR, convert_to_sparse_tensor=False, convert_to_tensor=True)
    one, other = vectors.numpy()
    with torch.inference_mode():
        inputs = [encoder.preprocess([text]) for text in PAIR]
        logits = [encoder[0](one)["token_embeddings"][0].numpy() for one in inputs]
    artifact = exported(folder, "splade-max")
    async with serving(artifact) as client:
        response = await client.post("/explain", json={"inputs": [PAIR] * 2})
    async with serving(serving_copy(artifact, tmp_path / "serving")) as client:
        gone = await client.post("/explain", json={"inputs": [PAIR]})
    assert_problem(gone, 501, "this artifact was exported with --serving-only", "Backend")
    found, again = response.json()["results"]
    assert found == again
    assert found["similarity"] == pytest.approx(float(one @ other), rel=1e-5)
    assert found["completeness_error"] < 1e-5
    matches = found["matches"]
    assert {match["token_id"] for match in matches} == set(np.flatnonzero(one * other).tolist())
    assert matches
    for match in matches:
        word = match["token_id"]
        assert match["score"] == pytest.approx(one[word] * other[word], rel=1e-4, abs=1e-6)
        for side, of_text in zip(("query", "document"), logits, strict=True):
            assert of_text[match[side], word] == pytest.approx(of_text[:, word].max(), abs=1e-5)
    scores = [match["score"] for match in matches]
    assert scores == sorted(scores, reverse=True)
