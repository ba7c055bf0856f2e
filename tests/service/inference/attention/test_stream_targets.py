"""Streamed maps of three kinds: in order, from one forward pass, within bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from service.errors import ReplyTooLarge
from service.inference.attention.maps import LayerMaps, TextSummary
from service.inference.attention.stream import AttentionStream
from service.inference.attention.text import AttentionText
from service.inference.timings import Timings
from tests.service.harness import CONFIG, batching, tokenized
from tests.service.inference.attention.test_stream import ALL, S, Watched, subjects

pytestmark = pytest.mark.anyio
OF_TARGET = (2, 0), (1,)
THREE_KINDS = dataclasses.replace(
    ALL,
    maps={**ALL.maps, "decoder": OF_TARGET, "cross": OF_TARGET},
    include=ALL.include | {"logprobs"},
    targets=True,
)


def with_targets(*lengths: tuple[int, int]) -> list[AttentionText]:
    """Return texts of S tokens with targets of T tokens."""
    return [
        dataclasses.replace(
            one,
            text=dataclasses.replace(one.text, target=tokenized(target, 50 + seed)),
            target_separators=(0,),
        )
        for seed, (one, (_, target)) in enumerate(
            zip(subjects(*(source for source, _ in lengths)), lengths, strict=True)
        )
    ]


async def test_maps_of_three_kinds_come_from_one_pass_a_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks are of sources and targets together."""
    monkeypatch.setattr("service.inference.attention.stream.CHUNK_TOKENS", 20)
    engine = Watched()
    of = with_targets((8, 2), (4, 6), (2, 19))
    with batching(engine) as (batcher, _):
        stream = AttentionStream(batcher, CONFIG, THREE_KINDS, of, Timings(0, 0.0, 0.0))
        assert stream.hidden_bytes == 4 * 8 * max(20 * 4, 3 * 2 + 4 * 19)
        results = [result async for result in stream.results()]
    assert engine.seen == "TT" + "m" * 12 + "T" + "m" * 6
    for index, one in enumerate(of):
        source, target = one.lengths
        *maps, summary = results[7 * index : 7 * index + 7]
        found = [(each.kind, each.weights.shape) for each in maps if isinstance(each, LayerMaps)]
        assert found == [
            *[("encoder", (2, source, source))] * 2,
            *[("decoder", (1, target, target))] * 2,
            *[("cross", (1, target, source))] * 2,
        ]
        assert isinstance(summary, TextSummary)
        assert summary.logprobs is not None
        assert (summary.text, summary.logprobs.shape) == (index, (target,))
        assert (summary.pooled_shift, summary.logprob_shift) == (None, None)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("decoder", r"targets\[1\] has 9 tokens: the maps of 1 heads of one layer take 324 bytes"),
        ("cross", r"inputs\[1\] has 8 and targets\[1\] 9 tokens: the maps of 1 heads"),
    ],
)
async def test_a_layer_of_each_kind_is_bounded(
    kind: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.inference.attention.stream.LAYER_BYTES", 4 * S * S)
    selection = dataclasses.replace(ALL, maps={kind: ((0,), (1,))}, targets=True)
    with batching(Watched()) as (batcher, _):
        fits = with_targets((S, S), (1, S), (S, 1))
        AttentionStream(batcher, CONFIG, selection, fits, Timings(0, 0.0, 0.0))
        with pytest.raises(ReplyTooLarge, match=says):
            AttentionStream(
                batcher, CONFIG, selection, with_targets((S, S), (8, 9)), Timings(0, 0.0, 0.0)
            )
