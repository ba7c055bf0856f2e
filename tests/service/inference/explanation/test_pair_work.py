"""Sizes of a pair, results by the deadline, and groups of pairs."""

from __future__ import annotations

import numpy as np

from service.engines.contract import Pooling
from service.inference.attention.stream import CHUNK_TOKENS
from service.inference.explanation.cost import Side
from service.inference.explanation.occlusion import Occlusion
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pair_work import PairWork, chunks
from service.inference.explanation.spans import Span
from tests.service.harness import tokenized

OPTIONS = ExplainOptions(
    2, None, pairs=False, occlusion=True, decomposition=True, heads=False, spans="words", top=2
)


def work(tokens: int) -> PairWork:
    spans = [Span(n, n + 1, (n,)) for n in range(3)]
    return PairWork(OPTIONS, (tokenized(tokens), tokenized(5)), (spans, spans[:1]))


def test_sizes() -> None:
    assert work(40).sides == [Side(40, 3, 2), Side(5, 1, 1)]


def test_what_is_not_computed_is_nan_and_counted_as_wanted() -> None:
    pair = work(40)
    pair.similarity = 0.5
    pair.occlusions = tuple(
        Occlusion(text, spans, order, Pooling(2, "mean"), lambda x: x, np.ones(8, np.float32))
        for text, spans, order in zip(pair.texts, pair.spans, ([2, 0], [0]), strict=True)
    )
    pair.occlusions[0].without[2] = 0.25
    found = pair.explanation()
    assert found.occlusion is not None
    np.testing.assert_array_equal(found.occlusion[0], [np.nan, np.nan, 0.25])
    assert found.decomposition is not None
    assert found.decomposition.shape == (40, 5)
    assert found.wanted == {"occlusion": 3, "decomposition": 1}
    assert found.computed == {"occlusion": 1, "decomposition": 0}
    assert found.partial
    pair.decomposition = np.zeros((40, 5), np.float32)
    assert pair.explanation().computed["decomposition"] == 1


def test_neighbours_go_together_up_to_a_number_of_tokens() -> None:
    half = CHUNK_TOKENS // 2 - 5
    pairs = [work(length) for length in (half, half, 1, 2 * CHUNK_TOKENS, 7)]
    assert list(chunks(pairs)) == [pairs[:2], pairs[2:3], pairs[3:4], pairs[4:]]
