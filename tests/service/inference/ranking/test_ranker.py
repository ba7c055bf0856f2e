"""Rankings: choice of the model, deadlines, work, words and differences of words."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from model.artifact.manifest import TOKENIZER, Artifact
from service.engines.contract import Output, Task, TextTask
from service.inference.ranking.contrast import (
    Word,
    completeness_error,
    differences,
    distinct_words,
    occluded_document,
    rank_with,
    word_shares,
)
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.service.api.tei.tasks import LABELS, RANKS, TOKENS, serving_task
from tests.service.harness import AnsweringEngine, Client, assert_problem, serving, text
from tests.service.inference.ranking.oracle import DOCUMENTS, Embedder, ranked
from tests.service.several import fake_of

pytestmark = pytest.mark.anyio


def cross_encoder(artifact: Artifact) -> Artifact:
    """Return the artifact with the task head of a cross-encoder."""
    manifest = artifact.manifest.model_copy(update={"task": RANKS})
    return Artifact(artifact.folder, manifest, artifact.sha256)


@pytest.mark.parametrize("explain", ["tokens", "contrast"])
async def test_what_is_computed_by_the_deadline_is_the_answer(
    artifact: Artifact, explain: str
) -> None:
    """The engine hangs after about five occluded parts, until the reply arrives."""
    replied, occluded = threading.Event(), []

    def answer(tasks: Sequence[Task]) -> None:
        occluded.extend(task for task in tasks if isinstance(task, TextTask) and task.unseen)
        if len(occluded) > 5:
            assert replied.wait(30)

    engine = AnsweringEngine(answer, artifact.manifest.config)
    async with serving(cross_encoder(artifact), engine, max_batch_tokens=12) as client:
        body = {"query": "a", "documents": DOCUMENTS, "explain": explain}
        headers = {"x-request-timeout-ms": "2000"}
        answered = await client.post("/rank", json=body, headers=headers)
        replied.set()
    reply = answered.json()
    scores = [result["score"] for result in reply["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == len(DOCUMENTS)
    if explain == "tokens":
        partial = [result for result in reply["results"] if result["partial"]]
        assert partial
        for result in reply["results"]:
            known = [share for share in result["shares"] if share is not None]
            assert len(known) == result["computed"]
            assert (result["completeness_error"] is None) == result["partial"]
        computed = sum(result["computed"] for result in reply["results"])
    else:
        contrast = reply["contrast"]
        assert contrast["partial"]
        assert contrast["completeness_error"] is None
        known = [
            row["shares"][side]
            for row in contrast["words"]
            for side in (0, 1)
            if row["spans"][side] and row["shares"][side] is not None
        ]
        computed = sum(contrast["computed"])
        assert len(known) == computed
        assert all(row["rank"] for side in contrast["without"] for row in side)
    assert 3 <= computed <= len(occluded)


async def test_what_no_idle_service_could_do_is_refused_for_good(artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None, artifact.manifest.config)
    engine.measured = [(1, 0.2), (512, 102.4)]
    body = {"query": "a", "documents": ["the cat " * 20] * 2}
    refused = [("tokens", "or a smaller `top_n`"), ("contrast", "shorter documents")]
    async with serving(cross_encoder(artifact), engine, max_batch_tokens=512) as client:
        for explain, says in refused:
            answer = await client.post("/rank", json=body | {"explain": explain})
            assert says in assert_problem(answer, 422, "--request-timeout-seconds")["detail"]


async def test_equal_scores_keep_the_order_of_the_request(artifact: Artifact) -> None:
    async with serving(artifact) as client:
        same = ["a cat"] * 3
        reply = await ranked(client, "x", documents=same, explain="contrast", compare=[2, 0])
    assert [result["index"] for result in reply["results"]] == [0, 1, 2]
    assert reply["contrast"]["ranks"] == [3, 1]
    assert reply["contrast"]["difference"] == 0


BODY: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}


@pytest.mark.parametrize("task", [LABELS, TOKENS], ids=["labels", "tokens"])
async def test_classifiers_rank_nothing(artifact: Artifact, task: Any) -> None:
    async with serving_task(artifact, task) as client:
        answer = await client.post("/rank", json=BODY)
        assert_problem(answer, 424, "is a classifier with 3 labels", "Backend")


async def test_each_side_has_its_prompt(artifact: Artifact) -> None:
    """By default the checkpoint's prompts for queries and documents; "" is none."""
    prompts = {"query": "find: ", "passage": "read: ", "other": "x: "}
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": prompts})
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    prompted = Artifact(artifact.folder, manifest, artifact.sha256)
    async with serving(artifact, fake_of(artifact)) as client:
        by_hand = await ranked(client, "find: a", documents=["read: b", "read: c"])
        other = await ranked(client, "x: a", documents=["b", "c"])
    async with serving(prompted, fake_of(artifact)) as client:
        own = await ranked(client, "a", documents=["b", "c"])
        names = {"query_prompt_name": "other", "document_prompt_name": ""}
        named = await ranked(client, "a", documents=["b", "c"], **names)
        answer = await client.post("/rank", json=BODY | {"query_prompt_name": "unknown"})
        assert_problem(answer, 422, "unknown prompt_name")
    assert own["results"] == by_hand["results"]
    assert own["prompts"] == {
        "query": {"name": "query", "text": "find: "},
        "document": {"name": "passage", "text": "read: "},
    }
    assert named["prompts"] == {"query": {"name": "other", "text": "x: "}, "document": None}
    assert named["results"] == other["results"]


async def test_a_cross_encoder_has_no_prompt_of_documents(artifact: Artifact) -> None:
    async with serving_task(artifact, RANKS) as client:
        answer = await client.post("/rank", json=BODY | {"document_prompt_name": "a"})
        assert_problem(answer, 422, "document_prompt_name is not for this model")


QUERY = "what does the cat do"


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Embedder:
    return Embedder(small_checkpoint)


async def test_words_are_left_out_as_transformers_masks_them(
    client: Client, oracle: Embedder
) -> None:
    spans = [[[4, 7]], [], [[0, 1]], [], [[0, 1], [2, 3], [4, 5]]]
    masked = [[2], [], [1], [], [1, 2, 3]]
    fields: dict[str, Any] = {"query_without": [[5, 13]], "documents_without": spans}
    reply = await ranked(client, QUERY, **fields)
    scores = {result["index"]: result["score"] for result in reply["results"]}
    tokens = oracle.tokenizer.tokenize(QUERY)
    of_query = [1 + n for n, token in enumerate(tokens) if token in ("does", "the")]
    assert len(of_query) == 2
    expected = [
        oracle.score(QUERY, text, *hidden, of_query=of_query)
        for text, hidden in zip(DOCUMENTS, masked, strict=True)
    ]
    np.testing.assert_allclose([scores[n] for n in range(len(expected))], expected, atol=1e-5)
    assert [result["index"] for result in reply["results"]] == np.argsort(
        -np.array(expected)
    ).tolist()


class Scoring:
    """Scorer of a pair: its document has the tokens 2 and 3 of 4, or is all of it."""

    empty_score = -7.0

    def __init__(self, own: range) -> None:
        self.own = own

    def own_tokens(self, number: int) -> range:
        return self.own

    def task(self, number: int, unseen: tuple[int, ...]) -> Any:
        return (text(4), unseen) if len(unseen) < 4 else None

    def score(self, number: int, output: Output, unseen: tuple[int, ...]) -> float:
        return float(sum(unseen))


def test_parts_are_those_of_the_document_and_an_empty_one_is_not_computed() -> None:
    parts = occluded_document(cast(Any, Scoring(range(2, 4))), 0, [[0], [0, 1]])
    jobs: Any = [*parts.jobs()]
    assert [unseen for (_, unseen), _ in jobs] == [(2,), (2, 3)]
    assert all(math.isnan(score) for score in parts.scores)
    jobs[1][1](Output())
    np.testing.assert_array_equal(parts.scores, [math.nan, 5.0])
    whole = occluded_document(cast(Any, Scoring(range(4))), 0, [[0, 1, 2, 3]])
    assert [*whole.jobs()] == []
    assert whole.scores.tolist() == [-7.0]


@pytest.fixture(scope="module")
def tokenizer(artifact: Artifact) -> TextTokenizer:
    path: Path = artifact.path(TOKENIZER)
    return TextTokenizer(path, artifact.manifest.sentence, Limits(9_000, 99_000))


def test_a_word_has_all_its_occurrences(tokenizer: TextTokenizer) -> None:
    text = "The cat, the unbelievably fat CAT"
    (tokenized,) = tokenizer.tokenize([text], Options())
    words = {word.text: word for word in distinct_words(text, tokenized)}
    assert [*words] == ["the", "cat", ",", "unbelievably", "fat"]
    assert words["cat"].spans == [(4, 7), (30, 33)]
    assert [tokenized.tokens[token] for token in words["the"].tokens] == ["the", "the"]
    pieces = [tokenized.tokens[token] for token in words["unbelievably"].tokens]
    assert "".join(piece.removeprefix("##") for piece in pieces) == "unbelievably"
    shares = np.arange(len(tokenized.tokens), dtype=np.float32)
    expected = [sum(word.tokens) for word in words.values()]
    np.testing.assert_allclose(word_shares([*words.values()], shares), expected)


def test_a_share_of_two_words_is_divided() -> None:
    words = [Word("a", tokens=[0, 1]), Word("b", tokens=[1])]
    found = word_shares(words, np.array([1.0, 0.5], np.float32))
    np.testing.assert_allclose(found, [1.25, 0.25])


def test_one_word_many_times_takes_linear_time(tokenizer: TextTokenizer) -> None:
    text = "cat " * 8_000
    (tokenized,) = tokenizer.tokenize([text], Options())
    began = time.process_time()
    (word,) = distinct_words(text, tokenized)
    assert len(word.tokens) == 8_000
    assert time.process_time() - began < 2  # a set of all tokens for each occurrence takes longer


def compared(score: float, rest: float, **shares: float) -> Any:
    words, values = [Word(name, [(0, 1)]) for name in shares], np.array([*shares.values()])
    return SimpleNamespace(score=score, rest=rest, words=words, shares=values)


def test_differences_by_falling_size() -> None:
    first = compared(1.0, 0.25, a=0.5, b=0.25, c=math.nan)
    other = compared(0.5, 0.0, b=0.375, d=-0.125)
    rows = differences(first, other)
    assert [row.word for row in rows] == ["a", "b", "d", "c"]
    assert [row.shares for row in rows[:3]] == [(0.5, 0.0), (0.25, 0.375), (0.0, -0.125)]
    assert [row.difference for row in rows[:3]] == [0.5, -0.125, 0.125]
    assert [row.spans for row in rows[1:3]] == [([(0, 1)], [(0, 1)]), ([], [(0, 1)])]


def test_the_error_of_the_sum() -> None:
    first, other = compared(1.0, 0.25, a=0.5), compared(0.5, 0.0, b=0.375)
    assert completeness_error(first, other) == pytest.approx(abs(0.75 - 0.375 - 0.5))
    assert math.isnan(completeness_error(first, compared(0.5, 0.0, b=math.nan)))


def test_the_rank_with_another_score() -> None:
    scores = [0.9, 0.5, 0.5, 0.1]
    assert [rank_with(scores, n, score) for n, score in enumerate(scores)] == [1, 2, 3, 4]
    assert rank_with(scores, 0, 0.5) == 1
    assert rank_with(scores, 0, 0.3) == 3
    assert rank_with(scores, 3, 0.5) == 4
    assert rank_with(scores, 3, 1.0) == 1
