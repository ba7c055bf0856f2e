"""Forms of replies to texts with targets, and the prediction of their bytes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from model.artifact.signature import MapKind
from service.api.native.attention.writers import json_bytes, part_places, tensor_of, tensor_specs
from service.api.wire.json_pieces import json_pieces
from service.api.wire.schemas import NAMED
from service.engines.contract import Ablated
from service.inference.attention.map_parts import MapPart
from service.inference.attention.maps import ArrayName, AttentionSelection, LayersAndHeads, Lengths
from tests.service import plain
from tests.service.api.native.attention.test_writers import (
    ENGINE,
    POOLING,
    asking,
    assert_aligned,
    named,
    same,
    softmax,
    tensors_of,
    written,
)
from tests.service.documented import check_documented
from tests.service.harness import tokenized
from tests.service.with_targets import Case, assert_result

TEXTS = [
    dataclasses.replace(tokenized(source), target=tokenized(target))
    for source, target in ((7, 4), (2, 9))
]
OF_ENCODER: LayersAndHeads = (0,), (1, 2)
OF_DECODER: LayersAndHeads = (1, 0), (3,)
BOTH: dict[MapKind, LayersAndHeads] = {"decoder": OF_DECODER, "cross": OF_DECODER}


def selecting(
    maps: Mapping[MapKind, LayersAndHeads], *include: ArrayName, **asked: Any
) -> AttentionSelection:
    return AttentionSelection(maps, frozenset(include), **asked)


def shapes(selection: AttentionSelection) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in tensor_specs(selection, TEXTS, half=False)}


def test_parts_have_their_own_shapes_and_are_told() -> None:
    """Two texts of 7 and 2 tokens have targets of 4 and 9 tokens."""
    part = MapPart(queries=(-1, 0), max_size=3)
    found = shapes(selecting({"encoder": OF_ENCODER} | BOTH, "weights", "norms", part=part))
    assert [found[f"{kind}attention.0"][2:] for kind in ("", "decoder_", "cross_")] == [(2, 3)] * 3
    assert (found["cross_norms.1"], found["decoder_norms.1"]) == ((2, 1, 2, 2), (2, 1, 2, 3))
    whole = {"encoder": (tuple(range(3)), tuple(range(5)))} | BOTH
    selection = selecting(whole, "weights", "logprobs", part=part)
    tensors = {
        tensor_of(name, index): places
        for index, text in enumerate(TEXTS)
        for name, places in part_places(selection, Lengths.of(text)).items()
    }
    assert (len(tensors), tensors["queries.1"].tolist()) == (2 * 3 * 3, [1, 0])
    assert tensors["decoder_queries.1"].tolist() == tensors["cross_queries.1"].tolist() == [8, 0]
    assert tensors["cross_bins.0.keys"].tolist() == [[0, 3], [2, 5], [4, 7]]
    assert "keys.0" not in tensors
    alone = dataclasses.replace(selection, part=MapPart(queries=(-1, 0)))
    weights = 15 * 2 * 7 + 2 * (2 * 4 + 2 * 7) + 4
    assert json_bytes(alone, TEXTS[:1]) == 15 * weights + 6 * 6


def test_bytes_of_json_are_of_every_number() -> None:
    selection = selecting({"encoder": OF_ENCODER} | BOTH, "weights", "logprobs")
    numbers = 2 * (49 + 4) + 2 * (16 + 81) + 2 * (28 + 18) + 13
    assert json_bytes(selection, TEXTS) == 15 * numbers


@pytest.mark.parametrize("top_k", [1, 2, 10, 64])
@pytest.mark.parametrize("sharpness", [0.1, 1, 4, 10])
def test_the_assumed_size_of_the_largest_weights_is_on_the_safe_side(
    top_k: int, sharpness: float
) -> None:
    maps = softmax(sharpness * np.random.default_rng(0).normal(size=(2, 512, 512)))
    size = sum(len(b"".join(json_pieces(array))) for array in plain.largest(maps, top_k))
    asked = asking(top_k=top_k, layers=[0], heads=[0, 1])
    assert 0.6 < size / json_bytes(asked, [tokenized(512)]) <= 1


SOURCES, TARGETS = [3, 1, 6, 1], [2, 5, 1, 1]
KINDS: list[tuple[MapKind, ...]] = [
    ("cross",),
    ("decoder",),
    ("encoder",),
    ("decoder", "cross"),
    ("encoder", "decoder", "cross"),
]
INCLUDED: list[tuple[ArrayName, ...]] = [
    ("weights",),
    ("stats",),
    ("logprobs",),
    ("norms",),
    ("weights", "stats", "norms", "logprobs"),
]


ENCODER_HEADS: LayersAndHeads = (2, 0), (4, 1)
DECODER_HEADS: LayersAndHeads = (1, 0), (2, 0, 3)


def selections() -> list[AttentionSelection]:
    found = []
    ablations: list[dict[MapKind, Ablated]] = [
        {},
        {"encoder": ((0, 3),), "decoder": ((1, 0),), "cross": ((0, 2),)},
    ]
    for kinds, include, ablated in itertools.product(KINDS, INCLUDED, ablations):
        maps = {kind: ENCODER_HEADS if kind == "encoder" else DECODER_HEADS for kind in kinds}
        for top_k in (None, 2) if "weights" in include else (None,):
            rollout: list[ArrayName] = ["rollout"] if "encoder" in kinds and top_k else []
            found.append(
                AttentionSelection(
                    maps,
                    frozenset({*include, *rollout}),
                    top_k=top_k,
                    ablated=ablated,
                    targets=True,
                )
            )
    return found


def with_targets() -> list[Case]:
    sizes = enumerate(zip(SOURCES, TARGETS, strict=True))
    texts = [
        dataclasses.replace(tokenized(source, seed), target=tokenized(target, 100 + seed))
        for seed, (source, target) in sizes
    ]
    return [Case(text, (text.size - 1,), POOLING, 5, (0,)) for text in texts]


@pytest.mark.parametrize("asked", selections(), ids=named)
def test_both_forms_hold_what_was_computed(asked: AttentionSelection) -> None:
    body = written(asked, with_targets(), binary=False)
    reply = json.loads(body)
    assert reply["usage"] == {"inputs": 4, "tokens": sum(SOURCES) + sum(TARGETS)}
    for case, result in zip(with_targets(), reply["results"], strict=True):
        assert_result(result, ENGINE, case, asked)
    for half in (False, True):
        binary = written(asked, with_targets(), binary=True, half=half)
        assert_aligned(binary)
        same(safetensors.numpy.load(binary), tensors_of(reply, half=half))


def test_replies_have_the_documented_fields() -> None:
    part = MapPart(queries=(0,), keys=(0,), max_size=1)
    sent: set[str] = set()
    for selection in selections():
        rollouts = {"norm_rollout"} if "rollout" in selection.include else set()
        asked = dataclasses.replace(
            selection,
            include=selection.include.union(rollouts),
            part=MapPart() if selection.top_k else part,
        )
        body = written(asked, with_targets(), binary=False)
        content = json.loads(body)
        check_documented("AttentionReply", content | {"heads": []})
        sent.update(*content["results"])
    of_pictures = {"grid", "size", "crop", "tower"}
    documented = NAMED["AttentionResult"]["properties"].keys()
    assert sent == documented - of_pictures
