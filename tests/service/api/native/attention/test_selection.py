"""Layers, heads, parts and places of a request; /attention/scores against transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from model.artifact.manifest import Artifact
from model.config.encoder import EncoderConfig, PatchLayout
from service.api.native.attention.selection import (
    AttentionRequest,
    attention_selection,
    check_places,
    token_numbers,
)
from service.engines.contract import Engine
from service.engines.fake import FakeEngine
from service.errors import Unprocessable
from service.inference.attention.maps import AttentionSelection
from tests.service.api.native.hooked import Hooked
from tests.service.harness import CONFIG, StaysOpen, assert_problem, serving, tokenized
from tests.service.with_targets import decoder_like

pytestmark = pytest.mark.anyio


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


LAYOUT = PatchLayout(size=4, rows=2, columns=3, special_tokens=("[CLS]", "[REG 1]"))


def places(value: Any) -> Any:
    return AttentionRequest.model_validate({"inputs": "a", "queries": value}).queries


def test_patches_follow_the_special_tokens_row_by_row() -> None:
    asked = places(["[CLS]", "[REG 1]", [0, 0], [0, 2], [1, 0], [-1, -1], 3, -2])
    assert token_numbers("queries", asked, LAYOUT) == (0, 1, 2, 4, 5, 7, 3, -2)
    assert token_numbers("keys", None, LAYOUT) is None
    assert token_numbers("keys", [4, -1], None) == (4, -1)


@pytest.mark.parametrize(
    ("value", "layout", "says"),
    [
        ([[2, 0]], LAYOUT, "queries: row 2 is not in -2 … 1, the rows of a picture"),
        ([[0, -4]], LAYOUT, "queries: column -4 is not in -3 … 2, the columns of a picture"),
        (["CLS"], LAYOUT, "queries: the special tokens of a picture are [CLS], [REG 1]"),
        (["[CLS]"], LAYOUT.model_copy(update={"special_tokens": ()}), "none: give [row, column]"),
        ([[0, 0]], None, "queries: names and [row, column] are for pictures; give the numbers"),
        (["[CLS]"], None, "queries: names and [row, column] are for pictures"),
    ],
)
def test_places_that_do_not_exist(value: Any, layout: PatchLayout | None, says: str) -> None:
    with pytest.raises(Unprocessable) as refused:
        token_numbers("queries", places(value), layout)
    assert says in str(refused.value)


@pytest.mark.parametrize("value", [[], 3, [[1]], [[1, True]], [1.5], [None], [[0, 1], [0, 1]]])
def test_values_that_are_no_places(value: Any) -> None:
    with pytest.raises(ValidationError):
        places(value)


ROUTE = "/attention/scores"
SCORED = ["A man is playing a guitar.", "", "the cat sat on the mat"]
LAYER, HEAD = 1, 1


class Oracle(Hooked):
    """transformers' inputs of a head's scores, and its weights."""

    def compared(self, text: str, layer: int, head: int) -> tuple[Any, Any, Any]:
        """Return queries `[S, p]`, keys `[S, p]` and weights `[S, S]`."""
        output, own = self.output(text), self.model.encoder.layer[layer].attention.self
        part = slice(head * own.attention_head_size, (head + 1) * own.attention_head_size)
        with torch.inference_mode():
            queries, keys = (
                projection(output.hidden_states[layer])[0, :, part].numpy()
                for projection in (own.query, own.key)
            )
        return queries, keys, output.attentions[layer][0, head].numpy()


@pytest.fixture(scope="module")
def oracle(small_checkpoint: Path) -> Oracle:
    return Oracle(small_checkpoint)


@pytest.fixture(params=["onnx_engine", "torch_engine"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return StaysOpen(request.getfixturevalue(request.param))


@pytest.fixture
async def client(artifact: Artifact, engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(artifact, engine) as client:
        yield client


async def test_they_are_transformers_own(client: httpx.AsyncClient, oracle: Oracle) -> None:
    body = {"inputs": SCORED, "layer": -1, "head": HEAD}
    reply = (await client.post(ROUTE, json=body)).json()
    size = oracle.model.config.hidden_size // oracle.model.config.num_attention_heads
    assert (reply["layer"], reply["head"]) == (LAYER, HEAD)
    assert reply["scale"] == pytest.approx(size**-0.5)
    assert reply["usage"]["inputs"] == len(SCORED)
    for text, result in zip(SCORED, reply["results"], strict=True):
        queries, keys, weights = oracle.compared(text, LAYER, HEAD)
        assert "queries" not in result
        np.testing.assert_allclose(result["query_vectors"], queries, atol=1e-4)
        np.testing.assert_allclose(result["key_vectors"], keys, atol=1e-4)
        np.testing.assert_allclose(result["scores"], queries @ keys.T * size**-0.5, atol=1e-4)
        np.testing.assert_allclose(result["weights"], weights, atol=1e-5)
        assert len(result["tokens"]) == len(weights)


async def test_a_pair_of_tokens(client: httpx.AsyncClient, oracle: Oracle) -> None:
    body = {"inputs": SCORED[::2], "layer": 0, "head": 0, "queries": [3, -1], "keys": [1]}
    reply = (await client.post(ROUTE, json=body)).json()
    for text, result in zip(SCORED[::2], reply["results"], strict=True):
        queries, keys, weights = oracle.compared(text, 0, 0)
        assert (result["queries"], result["keys"]) == ([3, len(weights) - 1], [1])
        np.testing.assert_allclose(result["query_vectors"], queries[[3, -1]], atol=1e-4)
        np.testing.assert_allclose(result["key_vectors"], keys[[1]], atol=1e-4)
        scores = queries[[3, -1]] @ keys[[1]].T * reply["scale"]
        np.testing.assert_allclose(result["scores"], scores, atol=1e-4)
        np.testing.assert_allclose(result["weights"], weights[[3, -1]][:, [1]], atol=1e-5)


async def test_of_an_ablated_run(client: httpx.AsyncClient) -> None:
    """Scores of the next layer change, and their softmax equals /attention of the ablated run."""
    ablate = [{"layer": 0, "head": 0}, {"layer": 0, "head": -1}]
    body = {"inputs": SCORED[0], "layer": 1, "head": 0}
    whole, cut = [
        (await client.post(ROUTE, json=body | more)).json()["results"][0]
        for more in ({}, {"ablate": ablate})
    ]
    assert np.abs(np.subtract(whole["scores"], cut["scores"])).max() > 1e-3
    asked = {"inputs": SCORED[0], "layers": [1], "heads": [0], "ablate": ablate}
    [result] = (await client.post("/attention", json=asked)).json()["results"]
    softmax = torch.softmax(torch.tensor(cut["scores"]), -1).numpy()
    np.testing.assert_allclose(softmax, result["attention"][0][0], atol=1e-5)
    np.testing.assert_allclose(cut["weights"], result["attention"][0][0], atol=1e-6)


async def test_a_long_text_is_refused(artifact: Artifact) -> None:
    body = {"inputs": "word " * 600, "layer": 0, "head": 0}
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        reply = await client.post(ROUTE, json=body)
    assert_problem(reply, 422, "inputs[0] has 602 tokens", "Tokenizer")


async def test_a_reply_that_would_be_too_large_is_refused_beforehand(artifact: Artifact) -> None:
    body = {"inputs": ["word " * 400] * 8, "layer": 0, "head": 0}
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine, max_response_bytes=2**22) as client:
        assert_problem(await client.post(ROUTE, json=body), 413, "ask for fewer texts")
        reply = await client.post(ROUTE, json=body | {"queries": [1], "keys": [2]})
        assert reply.status_code == 200


async def test_the_predicted_size_is_on_the_safe_side(artifact: Artifact) -> None:
    body = {"inputs": ["word " * 100, "no"], "layer": 0, "head": 0}
    engine = FakeEngine(artifact.manifest.config)
    async with serving(artifact, engine) as client:
        size = len((await client.post(ROUTE, json=body)).content)
    async with serving(artifact, engine, max_response_bytes=size - 1) as client:
        assert_problem(await client.post(ROUTE, json=body), 413, "the reply would have about")
