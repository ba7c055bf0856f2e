"""Parts of maps that are refused before anything is computed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from service.api.native.attention.selection import (
    AttentionRequest,
    attention_selection,
    check_places,
)
from service.errors import Unprocessable
from tests.service.harness import CONFIG, tokenized
from tests.service.with_targets import decoder_like

DECODER = decoder_like(CONFIG, layers=3, heads=4, start=102)
TEXTS = [
    dataclasses.replace(tokenized(source), target=tokenized(target))
    for source, target in ((9, 4), (9, 4), (7, 5))
]
OF_TARGETS = {"inputs": ["a"] * 3, "targets": ["b"] * 3}


def check(body: dict[str, Any]) -> None:
    request = AttentionRequest.model_validate({"inputs": "a", **body})
    check_places(attention_selection(request, CONFIG, DECODER.layers), TEXTS)


@pytest.mark.parametrize(
    "body",
    [
        {"queries": [-7, 6], "keys": [0, -1], "max_size": 1},
        {"queries": [3], "top_k": 2},
        {"max_size": 10**30, "include": ["stats", "norms", "rollout"]},
        {**OF_TARGETS, "queries": [3, -4], "keys": [6, -7]},
        {**OF_TARGETS, "queries": [-4], "keys": [3], "maps": ["cross", "decoder", "encoder"]},
        {**OF_TARGETS, "queries": [6], "maps": ["encoder"]},
    ],
)
def test_parts_that_every_text_has(body: dict[str, Any]) -> None:
    check(body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"queries": [7]}, "queries: 7 is not in -7 … 6, the tokens of inputs[2]"),
        ({"keys": [0, -10]}, "keys: -10 is not in -9 … 8, the tokens of inputs[0]"),
        ({"keys": [-1, 6]}, "keys: one of inputs[2] is listed twice (negative ones count from"),
        ({**OF_TARGETS, "queries": [4]}, "queries: 4 is not in -4 … 3, the tokens of targets[0]"),
        ({**OF_TARGETS, "keys": [7]}, "keys: 7 is not in -7 … 6, the tokens of inputs[2]"),
        ({**OF_TARGETS, "keys": [4], "maps": ["decoder"]}, "… 3, the tokens of targets[0]"),
        ({"max_size": 9, "include": ["stats"]}, "max_size is of weights and norms, which `incl"),
        ({"queries": [0], "include": ["rollout"]}, "queries is of weights and norms, which"),
        ({"keys": [0], "top_k": 1}, "keys and top_k both choose keys: leave one of them out"),
        ({"queries": [0], "max_size": 9, "top_k": 1}, "max_size and top_k both choose keys"),
    ],
)
def test_parts_that_make_no_sense(body: dict[str, Any], says: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        check(body)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
