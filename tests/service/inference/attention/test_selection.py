"""Properties of a selection, and lengths of texts with targets."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from service.inference.attention.selection import ArrayName, Lengths
from tests.service.harness import tokenized
from tests.service.inference.attention.test_layer_passes import selection


def test_queries_and_keys_are_of_their_kinds() -> None:
    lengths = Lengths(7, 3)
    assert lengths.shape("encoder") == (7, 7)
    assert lengths.shape("decoder") == (3, 3)
    assert lengths.shape("cross") == (3, 7)


def test_lengths_are_of_a_text_and_its_target() -> None:
    text = tokenized(5)
    assert Lengths.of(text) == (5, 0)
    assert Lengths.of(dataclasses.replace(text, target=tokenized(3))) == (5, 3)


@pytest.mark.parametrize(
    ("include", "asked", "alone"),
    [
        (["weights"], {}, True),
        (["weights"], {"targets": True, "target": {"cross": ((2, 0), (7,))}}, True),
        ([], {}, False),
        *((["weights", name], {}, False) for name in ("stats", "rollout", "norms", "logprobs")),
        (["weights"], {"top_k": 3}, False),
        (["weights"], {"ablated": {"encoder": ((0, 0),)}}, False),
    ],
)
def test_whole_maps_alone(include: list[ArrayName], asked: dict[str, Any], alone: bool) -> None:
    assert selection(*include, **asked).only_weights is alone


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_head_of_any_kind_is_ablated(kind: str) -> None:
    nothing: dict[str, Any] = {"encoder": (), "decoder": (), "cross": ()}
    assert selection(ablated=nothing | {kind: ((0, 0),)}).ablates
    assert not selection(ablated=nothing).ablates
