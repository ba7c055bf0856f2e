"""Both forms of a reply to texts with targets hold exactly the computed values."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from model.artifact.signature import MapKind
from service.api.native.attention.maps import written as written_parts
from service.api.native.attention.writers import BinaryWriter, JsonWriter, Writer
from service.api.native.texts import Header
from service.engines.contract import Ablated
from service.inference.attention.selection import (
    NO_MAPS,
    ArrayName,
    AttentionSelection,
    LayersAndHeads,
)
from service.inference.attention.stream import AttentionStream
from service.inference.attention.text import AttentionText
from service.inference.timings import Timings
from tests.service.api.native.attention.test_writers import (
    ENGINE,
    ODD,
    POOLING,
    assert_aligned,
    named,
    same,
)
from tests.service.harness import batching, body_of, tokenized
from tests.service.with_targets import PREFIXES, TextWithTarget, assert_target_result

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


OF_ENCODER: LayersAndHeads = (2, 0), (4, 1)
OF_DECODER: LayersAndHeads = (1, 0), (2, 0, 3)


def selections() -> list[AttentionSelection]:
    found = []
    ablations: list[dict[MapKind, Ablated]] = [
        {},
        {"encoder": ((0, 3),), "decoder": ((1, 0),), "cross": ((0, 2),)},
    ]
    for kinds, include, ablated in itertools.product(KINDS, INCLUDED, ablations):
        maps = {kind: OF_ENCODER if kind == "encoder" else OF_DECODER for kind in kinds}
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


def texts() -> list[TextWithTarget]:
    return [
        TextWithTarget(tokenized(s, seed), tokenized(t, 100 + seed), (s - 1,), (0,), POOLING)
        for seed, (s, t) in enumerate(zip(SOURCES, TARGETS, strict=True))
    ]


def written(asked: AttentionSelection, *, binary: bool, half: bool = False) -> bytes:
    every = texts()
    given = [dataclasses.replace(one.text, target=one.target) for one in every]
    layers, _ = asked.maps.get("encoder", NO_MAPS)
    header = Header("a/model", "torch", {"layers": [*layers], "decoder_layers": [1, 0]})
    writer: Writer = JsonWriter(header, asked, given)
    if binary:
        writer = BinaryWriter(header, asked, given, half=half)

    async def parts() -> list[bytes]:
        with batching(ENGINE) as (batcher, _):
            of = [
                AttentionText(text, (*one.separators,), POOLING, (0,))
                for text, one in zip(given, every, strict=True)
            ]
            stream = AttentionStream(
                batcher, ODD, asked, of, Timings(0, 0.0, 0.0), convert=writer.dump
            )
            return [body_of([part]) async for part in written_parts(stream, writer)]

    body = b"".join(asyncio.run(parts()))
    assert writer.length == (len(body) if binary else None)
    return body


def tensors_of(reply: dict[str, Any], *, half: bool) -> dict[str, Any]:
    """Return the tensors that the binary form of a JSON reply must hold."""
    results = reply["results"]
    found: dict[str, Any] = {
        "segment_ids": joined(results, "segment_ids", np.int32),
        "truncated": np.array([one["truncated"] for one in results], np.uint8),
        "target_truncated": np.array([one["target_truncated"] for one in results], np.uint8),
    }
    for prefix, bounds in (("", "cu_seqlens"), ("target_", "target_cu_seqlens")):
        found[f"{prefix}token_ids"] = joined(results, f"{prefix}token_ids", np.int32)
        lengths = [len(one[f"{prefix}tokens"]) for one in results]
        found[bounds] = np.array([0, *itertools.accumulate(lengths)], np.int32)
    for name in ("pooled_shift", "target_logprob_shift"):
        if name in results[0]:
            found[name] = np.array([one[name] for one in results], np.float32)
    if "target_logprobs" in results[0]:
        found["target_logprobs"] = joined(results, "target_logprobs", np.float32)
    for index, result in enumerate(results):
        for prefix in PREFIXES.values():
            maps = result.get(f"{prefix}attention")
            found |= weights_of(f"{prefix}attention.{index}", maps, half=half)
            if norms := result.get(f"{prefix}norms"):
                found[f"{prefix}norms.{index}"] = np.array(norms, np.float32)
            for stat, values in result.get(f"{prefix}stats", {}).items():
                found[f"{prefix}stats.{index}.{stat}"] = np.array(values, np.float32)
        if "rollout" in result:
            found[f"rollout.{index}"] = np.array(result["rollout"], np.float32)
    return found


def weights_of(name: str, maps: Any, *, half: bool) -> dict[str, Any]:
    weights = np.float16 if half else np.float32
    if isinstance(maps, dict):
        return {
            f"{name}.indices": np.array(maps["indices"], np.int32),
            f"{name}.values": np.array(maps["values"], "f4").astype(weights),
        }
    return {name: np.array(maps, "f4").astype(weights)} if maps else {}


def joined(results: Sequence[dict[str, Any]], name: str, dtype: Any) -> Any:
    return np.concatenate([np.array(one[name], dtype) for one in results])


@pytest.mark.parametrize("asked", selections(), ids=named)
def test_both_forms_hold_what_was_computed(asked: AttentionSelection) -> None:
    body = written(asked, binary=False)
    reply = json.loads(body)
    assert reply["usage"] == {"inputs": 4, "tokens": sum(SOURCES) + sum(TARGETS)}
    for case, result in zip(texts(), reply["results"], strict=True):
        assert_target_result(result, ENGINE, case, asked)
    for half in (False, True):
        binary = written(asked, binary=True, half=half)
        assert_aligned(binary)
        same(safetensors.numpy.load(binary), tensors_of(reply, half=half))
