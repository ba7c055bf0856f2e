"""`POST /attention` with targets, pooled maps and single rows, in every form."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load
from transformers import BertModel

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.comparison import shift_right
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.api.wire.media import SAFETENSORS
from service.engines.contract import Pooling
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.inference.attention import map_parts
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.service import plain
from tests.service.documented import check_documented
from tests.service.harness import assert_problem, serving
from tests.service.with_targets import Case, assert_result, with_decoder

pytestmark = pytest.mark.anyio


BINARY = {"accept": SAFETENSORS}
ALL = ["encoder", "decoder", "cross"]
TEXTS = ["one [SEP] two", "", "because it was too tired to cross the street"]
TARGETS = ["", "deux [SEP] un", "parce que"]
ABLATE = [
    {"layer": 0, "head": 1},
    {"layer": -1, "head": 3, "map": "decoder"},
    {"layer": 2, "head": 0, "map": "cross"},
]


@pytest.fixture(scope="module")
def decoder_artifact(artifact: Artifact) -> Artifact:
    return with_decoder(artifact)


@pytest.fixture(scope="module")
async def decoder_client(
    decoder_artifact: Artifact, anyio_backend: str
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(decoder_artifact, FakeEngine(decoder_artifact.manifest.config)) as client:
        yield client


def tokenized_pairs(artifact: Artifact, texts: list[Any], targets: list[str]) -> list[Case]:
    """Return the texts tokenised by the artifact's tokenizer; [SEP] is 102."""
    manifest = artifact.manifest
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, Limits(512, 10**6))
    read, labels = (tokenizer.tokenize(given, Options()) for given in (texts, targets))
    for text, target in zip(read, labels, strict=True):
        text.target = target
    return [
        Case(
            text,
            np.flatnonzero(text.input_ids == 102).tolist(),
            Pooling(2, "mean"),
            manifest.config.num_attention_heads,
            np.flatnonzero(shift_right(target.input_ids, 102) == 102).tolist(),
        )
        for text, target in zip(read, labels, strict=True)
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"maps": ALL, "include": ["weights", "stats", "rollout", "logprobs"], "ablate": ABLATE},
        {"maps": ["decoder"], "layers": [-1, 0], "heads": [3, 0], "top_k": 3},
        {"include": ["logprobs"]},
        {"include": ["norms"], "layers": [2, 0], "heads": [1]},
        {"maps": ALL, "include": ["norms", "weights"], "top_k": 2},
    ],
)
async def test_replies_are_the_engines_own(
    decoder_client: httpx.AsyncClient, decoder_artifact: Artifact, asked: dict[str, Any]
) -> None:
    body = {"inputs": TEXTS, "targets": TARGETS, **asked}
    response = await decoder_client.post("/attention", json=body)
    assert response.status_code == 200, response.text
    reply, config = response.json(), decoder_artifact.manifest.config
    decoder = decoder_artifact.manifest.decoder
    assert decoder is not None
    selection = attention_selection(AttentionRequest.model_validate(body), config, decoder.layers)
    assert [*reply][2:6] == ["layers", "heads", "decoder_layers", "decoder_heads"]
    for prefix, kinds in (("", ["encoder"]), ("decoder_", ["decoder", "cross"])):
        selected = [own for kind, own in selection.maps.items() if kind in kinds]
        layers, heads = selected[0] if selected else ((), ())
        assert reply[f"{prefix}layers"] == [*layers]
        assert reply[f"{prefix}heads"] == [*heads]
    for pair, result in zip(
        tokenized_pairs(decoder_artifact, TEXTS, TARGETS), reply["results"], strict=True
    ):
        assert_result(result, FakeEngine(config), pair, selection)
    counted = sum(len(one["tokens"]) + len(one["target_tokens"]) for one in reply["results"])
    assert reply["usage"] == {"inputs": 3, "tokens": counted}
    assert response.headers["x-compute-tokens"] == str(counted)


async def test_one_text_and_a_pair(decoder_client: httpx.AsyncClient) -> None:
    one = (await decoder_client.post("/attention", json={"inputs": "a", "targets": "b"})).json()
    listed = (
        await decoder_client.post("/attention", json={"inputs": ["a"], "targets": ["b"]})
    ).json()
    assert one == listed
    pair = await decoder_client.post("/attention", json={"inputs": [["a", "c"]], "targets": "b"})
    (found,) = pair.json()["results"]
    assert np.shape(found["cross_attention"]) == (3, 4, 3, len(found["tokens"]))
    assert found["segment_ids"][-1] == 1


async def test_a_long_target_is_cut_where_it_is_asked(decoder_client: httpx.AsyncClient) -> None:
    """The encoder has 512 positions, the decoder 300."""
    body = {"inputs": ["a"] * 2, "targets": ["b", "b " * 600], "heads": [0], "layers": [0]}
    refused = await decoder_client.post("/attention", json=body)
    assert_problem(refused, 422, "targets[1] has 602 tokens; at most 300 fit", "Tokenizer")
    reply = (await decoder_client.post("/attention", json=body | {"truncate": True})).json()
    assert [one["target_truncated"] for one in reply["results"]] == [False, True]
    assert [one["truncated"] for one in reply["results"]] == [False, False]
    assert len(reply["results"][1]["target_tokens"]) == 300


async def test_characters_of_both_are_counted(decoder_artifact: Artifact) -> None:
    engine = FakeEngine(decoder_artifact.manifest.config)
    async with serving(decoder_artifact, engine, max_request_characters=10) as client:
        body = {"inputs": ["a" * 6], "targets": ["b" * 4]}
        assert (await client.post("/attention", json=body)).status_code == 200
        body["targets"] = ["b" * 5]
        response = await client.post("/attention", json=body)
        assert_problem(response, 422, "the request has 11 characters; at most 10")


async def test_a_model_without_a_decoder_takes_no_targets(client: httpx.AsyncClient) -> None:
    response = await client.post("/attention", json={"inputs": "a", "targets": "b"})
    assert_problem(response, 422, says="targets: this model has no decoder")


async def test_info_tells_of_the_decoder(
    decoder_client: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    reported = [(await one.get("/info")).json() for one in (decoder_client, client)]
    assert [(one["decoder_layers"], one["decoder_heads"]) for one in reported] == [
        (3, 4),
        (None, None),
    ]


PART_TEXTS = ["it was too tired to cross the street " * 5, "", "because it was too tired"]
PARTS: list[dict[str, Any]] = [
    {"max_size": 7},
    {"max_size": 1000},
    {"queries": [-1, 0], "keys": [1]},
    {"queries": [0, -1], "max_size": 1, "heads": [1], "layers": [-1]},
    {"keys": [-1, 0]},
    {"queries": [-1], "top_k": 3},
]


def part_of(maps: np.ndarray, asked: dict[str, Any]) -> np.ndarray:
    """Select a part of maps by plain indexing, then pool it by torch."""
    for axis, name in ((-2, "queries"), (-1, "keys")):
        if name in asked:
            maps = np.take(maps, [place % maps.shape[axis] for place in asked[name]], axis=axis)
    if "max_size" not in asked:
        return maps
    size = [min(length, asked["max_size"]) for length in maps.shape[-2:]]
    return torch.nn.functional.adaptive_max_pool2d(torch.tensor(maps), size).numpy()


@pytest.fixture(scope="module")
def theirs(small_checkpoint: Path) -> Callable[[list[int]], np.ndarray]:
    """Return transformers' maps of a text, `[L, N, S, S]`: eager, in float32."""
    model = BertModel.from_pretrained(
        small_checkpoint, attn_implementation="eager", dtype=torch.float32
    ).eval()

    def maps(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            found = model(torch.tensor([ids]), output_attentions=True).attentions
        return torch.stack(found)[:, 0].numpy()

    return maps


@pytest.mark.parametrize("asked", PARTS)
async def test_parts_of_maps_are_transformers(
    client: httpx.AsyncClient, theirs: Callable[[list[int]], np.ndarray], asked: dict[str, Any]
) -> None:
    """This holds in both forms; statistics are of the whole maps; replies list the indices."""
    body = {"inputs": PART_TEXTS, "include": ["weights", "stats"], **asked}
    reply = await client.post("/attention", json=body)
    assert reply.status_code == 200, reply.text
    binary = await client.post("/attention", json=body, headers=BINARY)
    half = await client.post("/attention", json=body | {"dtype": "float16"}, headers=BINARY)
    tensors, halves = load(binary.content), load(half.content)
    check_documented("AttentionReply", reply.json())
    for i, found in enumerate(reply.json()["results"]):
        whole = theirs(found["token_ids"])[
            np.ix_(asked.get("layers", [0, 1]), asked.get("heads", [0, 1]))
        ]
        wanted, size = part_of(whole, asked), len(found["tokens"])
        weights, name = found["attention"], f"attention.{i}"
        if "top_k" in asked:
            weights, name = weights["values"], f"{name}.values"
            wanted = plain.largest(wanted, 3)[1]
        np.testing.assert_allclose(weights, wanted, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(tensors[name], np.array(weights, "f4"), strict=True)
        np.testing.assert_array_equal(halves[name], tensors[name].astype("f2"), strict=True)
        for statistic, values in plain.statistics(whole, [size - 1]).items():
            np.testing.assert_allclose(found["stats"][statistic], values, rtol=0, atol=1e-4)
        for axis in ("queries", "keys"):
            places = [place % size for place in asked.get(axis, [])]
            assert (
                found.get(axis, []) == places == tensors.get(f"{axis}.{i}", np.array([])).tolist()
            )
            if "max_size" in asked:
                bins = found["bins"][axis]
                assert tensors[f"bins.{i}.{axis}"].tolist() == bins
                assert (bins[0][0], bins[-1][1]) == (0, len(places) or size)
        assert ("bins" in found) == ("max_size" in asked)


async def test_norms_are_of_the_same_part(client: httpx.AsyncClient) -> None:
    """With an ablation, norms are of the ablated run; rollouts are of the whole maps."""
    whole = {
        "inputs": PART_TEXTS,
        "include": ["weights", "norms", "rollout", "norm_rollout"],
        "ablate": [{"layer": 0, "head": 1}],
    }
    asked = {"queries": [-1, 0], "max_size": 5}
    both = [
        load((await client.post("/attention", json=body, headers=BINARY)).content)
        for body in (whole, whole | asked)
    ]
    for i in range(len(PART_TEXTS)):
        for name in ("attention", "norms"):
            before, after = (tensors[f"{name}.{i}"] for tensors in both)
            np.testing.assert_allclose(after, part_of(before, asked), rtol=0, atol=1e-6)
        for name in (f"rollout.{i}", f"norm_rollout.{i}", "pooled_shift"):
            np.testing.assert_allclose(both[0][name], both[1][name], rtol=0, atol=1e-6)


@pytest.mark.slow
async def test_an_int8_artifact_gives_parts_of_its_own_maps(
    exported: Callable[..., Artifact], tiny_checkpoint: Path
) -> None:
    artifact = exported(tiny_checkpoint, "tiny", "int8")
    assert artifact.manifest.runtime == "openvino"
    async with serving(artifact, OnnxEngine(artifact, "cpu", threads=2)) as client:
        replies = [
            load((await client.post("/attention", json=body, headers=BINARY)).content)
            for body in ({"inputs": "a b c d e"}, {"inputs": "a b c d e", "max_size": 3})
        ]
    wanted = part_of(replies[0]["attention.0"], {"max_size": 3})
    np.testing.assert_allclose(replies[1]["attention.0"], wanted, rtol=0, atol=1e-6)


async def test_a_limit_is_of_what_is_sent(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    """The limit holds to the byte: parts of a long text pass where its whole maps are refused."""
    text = "tired " * 300
    asked = {"inputs": text, "max_size": 96, "queries": [*range(150)], "dtype": "float16"}
    async with serving(artifact, onnx_engine) as client:
        reply = await client.post("/attention", json=asked, headers=BINARY)
    assert len(reply.content) == int(reply.headers["content-length"]) < 110_000
    limits = {len(reply.content): 200, len(reply.content) - 1: 413}
    for most, status in limits.items():
        async with serving(artifact, onnx_engine, max_response_bytes=most) as client:
            found = await client.post("/attention", json=asked, headers=BINARY)
            whole = await client.post("/attention", json={"inputs": text}, headers=BINARY)
        assert (found.status_code, whole.status_code) == (status, 413)


async def test_maps_are_pooled_in_the_thread_that_computed_them(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    pooled = map_parts.max_pooled

    def observed(maps: Any, most: int) -> Any:
        names.append(threading.current_thread().name)
        return pooled(maps, most)

    monkeypatch.setattr(map_parts, "max_pooled", observed)
    await client.post("/attention", json={"inputs": "a", "max_size": 2})
    assert len(names) == 2
    assert threading.current_thread().name not in names
