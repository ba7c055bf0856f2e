"""Alignments in the order of their pairs, under a deadline; through real graphs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest

from service.errors import DeadlinePassed
from service.inference.alignment.pairs import AlignmentOptions, Pair, PreparedPairs
from service.inference.alignment.word_alignments import align_vectors
from service.inference.alignment.words import AlignedText
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.timings import Timings

pytestmark = pytest.mark.anyio
TEXT = "the animal was too tired to cross the street"


async def test_many_pairs_are_each_as_alone(client: httpx.AsyncClient) -> None:
    """40 of them, in three groups, by a real encoder; a text and itself, word by word."""
    words = TEXT.split()
    pairs = [[" ".join(words[: i % 9 + 1]), " ".join(words[i % 4 :])] for i in range(39)]
    response = await client.post("/align", json={"inputs": [*pairs, [TEXT, TEXT]]})
    *found, itself = response.json()["results"]
    assert itself["pharaoh"] == "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7 8-8"
    assert min(one["score"] for one in itself["alignments"]) == pytest.approx(1, abs=1e-5)
    for index in (0, 17, 38):
        alone = await client.post("/align", json={"inputs": [pairs[index]]})
        assert alone.json()["results"][0]["pharaoh"] == found[index]["pharaoh"]


async def test_no_more_is_aligned_after_the_deadline() -> None:
    one = AlignedText("a", np.array([(0, 1)], np.int32), *(np.zeros(1, np.intp),) * 4)
    vectors = TextEncoding(np.ones((1, 4), np.float32), None)

    async def encode(prepared: PreparedTexts, options: EncodeOptions) -> list[TextEncoding]:
        assert (options.layer, options.tokens, options.pooled) == (7, True, False)
        return [vectors] * 40

    def prepared(finish_by: float) -> PreparedPairs:
        caller: Any = SimpleNamespace(finish_by=finish_by)
        texts = PreparedTexts([], caller, cast(Any, None), Timings(0, 0.0, 0.0))
        return PreparedPairs(texts, [Pair(one, one)] * 20, [(False, False)] * 20)

    inference: Any = SimpleNamespace(encode=encode)
    options = AlignmentOptions("mutual", layer=7)
    found = await align_vectors(inference, prepared(math.inf), options)
    assert [each.links.tolist() for each in found] == [[[0, 0]]] * 20
    with pytest.raises(DeadlinePassed, match="when 16 of 20 pairs were aligned"):
        await align_vectors(inference, prepared(0.0), options)
