"""The two forms of a reply of /attention: both hold exactly the computed values."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
import safetensors.torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from model.config.encoder import EncoderConfig
from service.api.native.attention.maps import written as written_parts
from service.api.native.attention.writers import BinaryWriter, JsonWriter, Writer, json_bytes
from service.api.native.texts import Envelope
from service.api.wire.json_pieces import json_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT
from service.engines.contract import MapsTask, Pooling
from service.engines.fake import FakeEngine
from service.inference.attention.maps import NO_MAPS, ArrayName, AttentionSelection
from service.inference.attention.stream import AttentionStream
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.scheduler.call import ANYBODY
from tests.service.harness import CONFIG, batching, body_of, manifest_of, tokenized
from tests.service.with_targets import PREFIXES, Case, assert_result

ODD = EncoderConfig.model_validate(
    CONFIG.model_dump() | {"num_hidden_layers": 3, "num_attention_heads": 5, "hidden_size": 15}
)
"""Shapes of odd size, which reveal misaligned tensors."""
ENGINE = FakeEngine(ODD)
RAGGED = [3, 1, 6, 1, 5]
POOLING = Pooling(3, "mean")
TEXT_FIELDS = {"tokens", "token_ids", "offsets", "segment_ids", "truncated"}
WIDTHS = {"F32": 4, "I32": 4, "F16": 2, "U8": 1}


def asking(
    include: Sequence[ArrayName] = ("weights",),
    top_k: int | None = None,
    ablated: tuple[tuple[int, int], ...] = (),
    layers: Sequence[int] = range(3),
    heads: Sequence[int] = range(5),
) -> AttentionSelection:
    return AttentionSelection(
        {"encoder": (tuple(layers), tuple(heads))},
        frozenset(include),
        top_k=top_k,
        ablated={"encoder": ablated},
    )


def named(asked: AttentionSelection) -> str:
    """Return a name of a test of a selection, the same in every process."""
    ablating = " ablating" if asked.ablates else ""
    return f"{sorted(asked.include)} of {asked.maps}, top_k {asked.top_k}{ablating}"


def everything() -> list[AttentionSelection]:
    """Yield all pairs of options; choices of layers and heads alternate."""
    names: tuple[ArrayName, ...] = ("weights", "stats", "rollout")
    subsets: list[tuple[ArrayName, ...]]
    subsets = [chosen for n in (1, 2, 3) for chosen in itertools.combinations(names, n)]
    subsets += [("norms",), ("norm_rollout",), ("weights", "norms"), ("norms", "rollout")]
    subsets += [(*names, "norms", "norm_rollout")]
    selections = [(range(3), range(5)), ((2, 0), (4, 1, 3)), ((1,), (2,)), (range(3), (0, 4))]
    ablations: list[tuple[tuple[int, int], ...]] = [(), ((0, 3), (2, 0))]
    rows = [
        (include, top_k, ablated)
        for include in subsets
        for top_k in ((None, 1, 3, 1000) if "weights" in include else (None,))
        for ablated in ablations
    ]
    return [
        asking(*row, layers, heads)
        for n, row in enumerate(rows)
        for layers, heads in selections[(n + n // 2) % 2 :: 2]
    ]


def cases(lengths: Sequence[int]) -> list[Case]:
    texts = [tokenized(length, seed) for seed, length in enumerate(lengths)]
    return [Case(text, tuple(range(0, text.size, 2)), POOLING, 5) for text in texts]


def written(
    asked: AttentionSelection,
    given: Sequence[Case],
    *,
    binary: bool,
    half: bool = False,
    engine: FakeEngine = ENGINE,
) -> bytes:
    """Return the reply to some texts."""
    texts = [case.text for case in given]
    layers, heads = asked.maps.get("encoder", NO_MAPS)
    envelope = Envelope("a/model", "torch", texts, {"layers": [*layers], "heads": [*heads]})
    writer: Writer = JsonWriter(envelope, asked)
    if binary:
        writer = BinaryWriter(envelope, asked, half=half)

    async def parts() -> list[bytes]:
        with batching(engine) as (batcher, _):
            # The decoder reads the start token, and never the last label
            ends = {int(case.text.input_ids[place]) for case in given for place in case.separators}
            of_targets = {-1, *(int(text.target.input_ids[-1]) for text in texts if text.target)}
            prepared = PreparedTexts([*texts], ANYBODY, batcher, Timings(0, 0.0, 0.0))
            manifest = manifest_of(ODD, -1 if asked.targets else None)
            stream = AttentionStream(prepared, manifest, asked, (ends, of_targets), writer.dump)
            return [body_of([part]) async for part in written_parts(stream, writer)]

    body = b"".join(asyncio.run(parts()))
    assert writer.length == (len(body) if binary else None)
    return body


def tensors_of(reply: dict[str, Any], *, half: bool) -> dict[str, Any]:
    """Return the tensors that the binary form of a JSON reply must hold."""
    results = reply["results"]
    found: dict[str, Any] = {"segment_ids": joined(results, "segment_ids", np.int32)}
    for prefix in ("", "target_") if "target_tokens" in results[0] else ("",):
        truncated = [one[f"{prefix}truncated"] for one in results]
        found[f"{prefix}truncated"] = np.array(truncated, np.uint8)
        found[f"{prefix}token_ids"] = joined(results, f"{prefix}token_ids", np.int32)
        lengths = [len(one[f"{prefix}tokens"]) for one in results]
        found[f"{prefix}cu_seqlens"] = np.array([0, *itertools.accumulate(lengths)], np.int32)
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
        for name in {"rollout", "norm_rollout"} & result.keys():
            found[f"{name}.{index}"] = np.array(result[name], np.float32)
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


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(np.asarray(found[name]), array, strict=True, err_msg=name)


def assert_aligned(body: bytes) -> None:
    """Check that tensors are aligned to their item size, do not overlap, and fill the body."""
    size = int.from_bytes(body[:8], "little")
    assert size % 8 == 0
    header = json.loads(body[8 : 8 + size])
    del header["__metadata__"]
    end = 0
    for entry in sorted(header.values(), key=lambda entry: entry["data_offsets"]):
        assert entry["data_offsets"][0] == end
        assert end % WIDTHS[entry["dtype"]] == 0
        end = entry["data_offsets"][1]
    assert end == len(body) - 8 - size


@pytest.mark.parametrize("asked", everything(), ids=named)
def test_both_forms_hold_what_was_computed(asked: AttentionSelection, tmp_path: Path) -> None:
    reply = json.loads(written(asked, cases(RAGGED), binary=False))
    assert [*reply] == ["model", "backend", "layers", "heads", "results", "usage"]
    assert (reply["model"], reply["backend"]) == ("a/model", "torch")
    assert [reply["layers"], reply["heads"]] == [*map(list, asked.maps["encoder"])]
    assert reply["usage"] == {"inputs": 5, "tokens": 16}
    for case, result in zip(cases(RAGGED), reply["results"], strict=True):
        assert_result(result, ENGINE, case, asked)
    for half in (False, True):
        body = written(asked, cases(RAGGED), binary=True, half=half)
        assert_aligned(body)
        wanted = tensors_of(reply, half=half)
        same(safetensors.numpy.load(body), wanted)
        same(safetensors.torch.load(body), wanted)
        file = tmp_path / "reply.safetensors"
        file.write_bytes(body)
        for framework in ("numpy", "pt"):
            with safe_open(file, framework=framework) as opened:
                same({name: opened.get_tensor(name) for name in opened.keys()}, wanted)  # noqa: SIM118


def test_metadata_holds_the_lists(tmp_path: Path) -> None:
    file = tmp_path / "reply.safetensors"
    asked = asking(("stats",), layers=(1, 0), heads=(2,))
    file.write_bytes(written(asked, cases(RAGGED), binary=True))
    with safe_open(file, framework="numpy") as reply:
        metadata = reply.metadata()
    texts = [tokenized(length, seed) for seed, length in enumerate(RAGGED)]
    assert (metadata.pop("model"), metadata.pop("backend")) == ("a/model", "torch")
    lists = {name: json.loads(value) for name, value in metadata.items()}
    assert lists == {
        "layers": [1, 0],
        "heads": [2],
        "tokens": [text.tokens for text in texts],
        "offsets": [[list(pair) for pair in text.offsets] for text in texts],
        "usage": {"inputs": 5, "tokens": 16},
    }


def test_maps_are_sent_as_they_are() -> None:
    writer = BinaryWriter(Envelope("a/model", "onnx", [tokenized(4)]), asking(), half=False)
    maps = np.random.default_rng(0).random((5, 4, 4), np.float32)
    assert np.shares_memory(np.frombuffer(writer.dump(maps), np.uint8), maps)
    turned = maps.transpose(0, 2, 1)
    assert bytes(writer.dump(turned)) == np.ascontiguousarray(turned).tobytes()


# ── sizes ──────────────────────────────────────────────────────────────────────────────────


class SharpEngine(FakeEngine):
    """Fake engine with realistic maps: from nearly uniform to nearly all weight on one key."""

    sharpness = 1.0

    def _map(self, task: MapsTask, head: int) -> Any:  # type: ignore[override]
        shape = (len(task.queries), len(task.keys))
        scores = np.random.default_rng([head, task.layer, task.tokens]).normal(size=shape)
        return softmax(self.sharpness * scores)


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=4)
NAMES_OF_MEMBERS = 200
"""Bytes of a text's JSON that are neither numbers nor the text's description."""


@given(
    asked=st.sampled_from(everything()),
    lengths=SIZES,
    top_k=st.integers(1, 70),
    sharpness=st.sampled_from([0.01, 1, 3, 6, 10, 30]),
)
@settings(max_examples=60, deadline=None)
def test_json_is_never_longer_than_predicted(
    asked: AttentionSelection, lengths: list[int], top_k: int, sharpness: float
) -> None:
    if asked.top_k is not None:
        asked = dataclasses.replace(asked, top_k=top_k)
    engine = SharpEngine(ODD)
    engine.sharpness = sharpness
    body = written(asked, cases(lengths), binary=False, engine=engine)
    reply = json.loads(body)
    for result in reply["results"]:
        for name in result.keys() - TEXT_FIELDS:
            del result[name]
    numbers = len(body) - len(orjson.dumps(reply)) - NAMES_OF_MEMBERS * len(lengths)
    assert numbers <= json_bytes(asked, [tokenized(length) for length in lengths])


@pytest.mark.parametrize("sharpness", [0.1, 1, 2, 3, 4, 6, 10])
@pytest.mark.parametrize("length", [16, 128, 512])
def test_the_assumed_size_of_maps_is_on_the_safe_side(length: int, sharpness: float) -> None:
    maps = softmax(sharpness * np.random.default_rng(0).normal(size=(2, length, length)))
    written = b"".join(json_pieces(maps))
    assert 0.7 < len(written) / (maps.size * JSON_BYTES_PER_FLOAT) <= 1
