"""Bounds on the memory of a pair of texts, checked before it is computed."""

from __future__ import annotations

import tracemalloc
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.errors import DeadlinePassed
from service.inference.alignment import pairs
from service.inference.alignment.matching import Method, lift, match_cross, match_vectors
from service.inference.alignment.pairs import Pair, grouped
from service.inference.alignment.words import AlignedText
from service.scheduler.submission import Caller
from tests.service.harness import assert_problem, serving, tokenized

OWNED = st.lists(st.lists(st.integers(0, 4), max_size=3, unique=True).map(sorted), max_size=6)
"""Tokens of each word."""


def text(owned: list[list[int]]) -> AlignedText:
    worded = [i for i, tokens in enumerate(owned) if tokens]
    sizes = [len(owned[i]) for i in worded]
    listed = np.array([token for tokens in owned for token in tokens], np.intp)
    tokens, pieces = np.unique(listed, return_inverse=True)
    starts = (np.cumsum(sizes) - sizes).astype(np.intp)
    return AlignedText(
        "",
        np.array([(0, 1)] * len(owned), np.int32),
        tokens,
        np.array(worded, np.intp),
        pieces,
        starts,
    )


@given(OWNED, OWNED, st.sampled_from(get_args(Method)), st.integers(0, 99))
def test_no_method_aligns_more_words_than_it_may(source, target, method, seed):
    pair = Pair(text(source), text(target))
    m, n = (len(one.tokens) for one in pair)
    most = pair.most_links(method)
    if not m or not n:
        assert most == 0
        return
    chance = np.random.default_rng(seed)
    if method == "cross":
        matches = match_cross(chance.random((n, m), np.float32))
    else:
        vectors = (chance.standard_normal((size, 4), np.float32) for size in (m, n))
        matches = match_vectors(*vectors, method)
    assert lift(matches, *pair).aligned.sum() <= most


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("tokens_a_word", [1, 3])
def test_a_pair_takes_no_more_bytes_than_are_counted(method, tokens_a_word):
    count = 600 // tokens_a_word
    words = [[i * tokens_a_word + j for j in range(tokens_a_word)] for i in range(count)]
    pair = Pair(text(words), text(words))
    vectors = np.random.default_rng(0).standard_normal((600, 8), np.float32)
    weights = vectors @ vectors.T
    tracemalloc.start()
    matches = match_cross(weights) if method == "cross" else match_vectors(vectors, vectors, method)
    lift(matches, *pair)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most <= pair.working_bytes < 2.5 * most + 32 * weights.size


def test_groups():
    assert [list(one) for one in grouped(range(35))] == [
        [*range(16)],
        [*range(16, 32)],
        [32, 33, 34],
    ]
    assert [*grouped([])] == []


@pytest.mark.anyio
async def test_a_pair_that_takes_too_much_is_refused(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "PAIR_BYTES", 1000)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        body = {"inputs": [["a", "b"], ["a b c d e f", "g h i j k l"]]}
        response = await client.post("/align", json=body)
        says = "inputs[1]: to align 6 words with 6 takes 1872 bytes, the limit is 1000"
        assert_problem(response, 413, says=says)


@pytest.mark.anyio
async def test_the_deadline_is_looked_at_between_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "PAIRS_AT_A_TIME", 2)
    one = tokenized(2)
    texts = [(("a b", "c"), (one, one))] * 5
    late = Caller(finish_by=0.0)
    with pytest.raises(DeadlinePassed, match="when 2 of 5 pairs had their words"):
        await pairs._with_words(texts, "spaces", late)
    assert len(await pairs._with_words(texts, "spaces", Caller())) == 5
