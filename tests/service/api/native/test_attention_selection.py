"""Layers and heads as a request names them, held against the encoder."""

from __future__ import annotations

from typing import Any

import pytest

from model.config import EncoderConfig
from service.api.native.attention_selection import AttentionRequest, attention_selection
from service.errors import Unprocessable
from service.inference.maps import AttentionSelection
from tests.service.harness import CONFIG

SIX = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 6, "num_attention_heads": 4}
)


def asked(**body: Any) -> AttentionSelection:
    return attention_selection(AttentionRequest.model_validate({"inputs": "a", **body}), SIX)


def head(layer: int, number: int) -> dict[str, int]:
    return {"layer": layer, "head": number}


def test_the_defaults_are_all_whole_maps_in_float32() -> None:
    found = asked()
    assert found == AttentionSelection(
        layers=(0, 1, 2, 3, 4, 5),
        heads=(0, 1, 2, 3),
        weights=True,
        statistics=False,
        rollout=False,
        top_k=None,
        ablated=(),
    )
    assert found.only_weights


@pytest.mark.parametrize(
    ("body", "name", "wanted"),
    [
        ({"layers": [5, -6, 2, -1 - 1]}, "layers", (5, 0, 2, 4)),
        ({"heads": [-1, 0, -3]}, "heads", (3, 0, 1)),
        ({"layers": None}, "layers", (0, 1, 2, 3, 4, 5)),
        ({"ablate": [head(-1, -4), head(0, 3)]}, "ablated", ((5, 0), (0, 3))),
        ({"ablate": [head(1, 0), head(1, 1), head(2, 0)]}, "ablated", ((1, 0), (1, 1), (2, 0))),
        ({"ablate": None}, "ablated", ()),
        ({"include": ["stats"]}, "weights", False),
        ({"include": ["stats"]}, "statistics", True),
        ({"include": ["rollout", "weights"]}, "rollout", True),
        ({"include": ["rollout", "weights"]}, "weights", True),
        ({"include": ["norms"]}, "norms", True),
        ({"include": ["norms"]}, "weights", False),
        ({"include": ["norm_rollout"]}, "norm_rollout", True),
        ({"include": ["norm_rollout", "rollout"]}, "norms", False),
        ({"top_k": 1}, "top_k", 1),
        ({"top_k": 10**6}, "top_k", 10**6),
    ],
)
def test_what_is_asked(body: dict[str, Any], name: str, wanted: Any) -> None:
    assert getattr(asked(**body), name) == wanted


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"layers": [6]}, "layers: 6 is not in -6 … 5"),
        ({"layers": [0, -7]}, "layers: -7 is not in -6 … 5"),
        ({"heads": [4]}, "heads: 4 is not in -4 … 3"),
        ({"heads": [-5]}, "heads: -5 is not in -4 … 3"),
        ({"layers": [0, -6]}, "layers: one is listed twice"),
        ({"layers": [-1, 2, 5]}, "layers: one is listed twice"),
        ({"heads": [3, 0, -1]}, "heads: one is listed twice"),
        ({"ablate": [head(6, 0)]}, "ablate: layer: 6 is not in -6 … 5"),
        ({"ablate": [head(0, 4)]}, "ablate: head: 4 is not in -4 … 3"),
        ({"ablate": [head(0, 0), head(-7, 0)]}, "ablate: layer: -7"),
        ({"ablate": [head(1, 2), head(1, 2)]}, "ablate: one is listed twice"),
        ({"ablate": [head(0, 3), head(2, 2), head(-6, -1)]}, "ablate: one is listed twice"),
        ({"top_k": 3, "include": ["stats", "rollout"]}, "top_k is of the weights"),
        ({"top_k": 3, "include": ["norms"]}, "top_k is of the weights"),
    ],
)
def test_what_cannot_be_asked(body: dict[str, Any], says: str) -> None:
    with pytest.raises(Unprocessable, match=says):
        asked(**body)


@pytest.mark.parametrize(
    "body",
    [
        {"include": ["weights", "stats"]},
        {"include": ["weights", "rollout"]},
        {"include": ["weights", "norms"]},
        {"include": ["weights", "norm_rollout"]},
        {"include": ["stats"]},
        {"top_k": 3},
        {"ablate": [head(0, 0)]},
    ],
)
def test_more_than_weights(body: dict[str, Any]) -> None:
    assert not asked(**body).only_weights
