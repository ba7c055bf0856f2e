"""Layers and heads of a request, checked against the encoder's shape."""

from __future__ import annotations

from typing import Any

import pytest

from model.config.encoder import EncoderConfig
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.errors import Unprocessable
from service.inference.attention.selection import AttentionSelection
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
    every = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3)
    assert found == AttentionSelection({"encoder": every}, ablated={"encoder": ()})
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
        ({"include": ["stats"]}, "include", {"stats"}),
        ({"include": ["rollout", "weights"]}, "include", {"rollout", "weights"}),
        ({"include": ["norm_rollout", "norms"]}, "include", {"norms", "norm_rollout"}),
        ({"top_k": 1}, "top_k", 1),
        ({"top_k": 10**6}, "top_k", 10**6),
    ],
)
def test_what_is_asked(body: dict[str, Any], name: str, wanted: Any) -> None:
    found = asked(**body)
    layers, heads = found.maps["encoder"]
    of_encoder = {"layers": layers, "heads": heads, "ablated": found.ablated["encoder"]}
    assert of_encoder.get(name, getattr(found, name, None)) == wanted


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


# ── of an encoder–decoder ──────────────────────────────────────────────────────────────────

THREE = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 3, "num_attention_heads": 8}
)


def with_targets(**body: Any) -> AttentionSelection:
    """Return the shape of an encoder of 6 layers of 4 heads and a decoder of 3 layers of 8."""
    request = {"inputs": ["a", "b"], "targets": ["c", "d"], **body}
    return attention_selection(AttentionRequest.model_validate(request), SIX, THREE)


def test_with_targets_cross_attention_is_the_default() -> None:
    found = with_targets()
    assert found.maps == {"cross": ((0, 1, 2), tuple(range(8)))}
    assert found.targets
    assert found.only_weights
    assert attention_selection(AttentionRequest(inputs=["a"]), SIX, THREE) == asked()


def test_indices_are_of_each_kind_asked_for() -> None:
    found = with_targets(maps=["cross", "encoder", "decoder"], layers=[-1, 0], heads=[-1])
    of_decoder = (2, 0), (7,)
    assert [*found.maps.items()] == [
        ("encoder", ((5, 0), (3,))),
        ("decoder", of_decoder),
        ("cross", of_decoder),
    ]
    assert with_targets(maps=["decoder"], heads=[7]).maps == {"decoder": ((0, 1, 2), (7,))}
    own = with_targets(maps=["encoder"], layers=[5], include=["logprobs"])
    assert ([*own.maps], own.include, own.targets) == (["encoder"], {"logprobs"}, True)


def test_heads_of_each_kind_are_ablated() -> None:
    heads = [head(5, 3), head(-1, 7) | {"map": "decoder"}, head(0, -8) | {"map": "cross"}]
    found = with_targets(ablate=heads)
    assert found.ablated == {"encoder": ((5, 3),), "decoder": ((2, 7),), "cross": ((0, 0),)}
    assert found.ablates
    assert not found.only_weights
    assert with_targets(ablate=heads[2:]).ablates
    assert not with_targets(include=["weights", "logprobs"]).only_weights


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            {"maps": ["encoder", "cross"], "layers": [3]},
            "layers: 3 is not in -3 … 2 of the decoder",
        ),
        ({"maps": ["encoder", "cross"], "heads": [4]}, "heads: 4 is not in -4 … 3 of the encoder"),
        ({"layers": [0, -3]}, "layers: one is listed twice"),
        ({"ablate": [head(3, 0) | {"map": "cross"}]}, "ablate: layer: 3 .* of the decoder"),
        ({"ablate": [head(0, 8) | {"map": "decoder"}]}, "ablate: head: 8 .* of the decoder"),
        ({"ablate": [head(6, 0)]}, "ablate: layer: 6 is not in -6 … 5 of the encoder"),
        ({"ablate": [head(0, 0) | {"map": "cross"}] * 2}, "ablate: one is listed twice"),
        ({"include": ["rollout"]}, "rollout is of the encoder, whose maps"),
        ({"targets": "c"}, "1 targets of 2 inputs"),
        ({"targets": ["c"] * 3}, "3 targets of 2 inputs"),
        ({"targets": None, "maps": ["encoder", "cross"]}, "maps: cross needs `targets`"),
        ({"targets": None, "maps": ["decoder"]}, "maps: decoder needs `targets`"),
        ({"targets": None, "include": ["logprobs"]}, "include: logprobs needs `targets`"),
        ({"targets": None, "ablate": [head(0, 0) | {"map": "cross"}]}, "ablate: map cross needs"),
    ],
)
def test_what_cannot_be_asked_of_a_decoder(body: dict[str, Any], says: str) -> None:
    with pytest.raises(Unprocessable, match=says):
        with_targets(**body)


@pytest.mark.parametrize(
    "body",
    [
        {"targets": "b"},
        {"maps": ["cross"]},
        {"include": ["weights", "logprobs"]},
        {"ablate": [head(0, 0) | {"map": "decoder"}]},
    ],
)
def test_a_model_without_a_decoder_has_none_of_it(body: dict[str, Any]) -> None:
    with pytest.raises(Unprocessable, match=r".*: this model has no decoder"):
        asked(**body)
    assert asked(maps=["encoder"]) == asked()
