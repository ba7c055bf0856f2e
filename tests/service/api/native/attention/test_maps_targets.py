"""`POST /attention` with targets: its numbers, its limits and its refusals, over a fake engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.shift import shift_right
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.api.wire.media import SAFETENSORS
from service.engines.contract import Pooling
from service.engines.fake import FakeEngine
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.service.harness import AnsweringEngine, assert_problem, listening, serving
from tests.service.with_targets import TextWithTarget, assert_target_result, with_decoder

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


def tokenized_pairs(
    artifact: Artifact, texts: list[Any], targets: list[str]
) -> list[TextWithTarget]:
    """Return the texts tokenised by the artifact's tokenizer; [SEP] is 102."""
    manifest = artifact.manifest
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, Limits(512, 10**6))
    found = zip(
        tokenizer.tokenize(texts, Options()), tokenizer.tokenize(targets, Options()), strict=True
    )
    return [
        TextWithTarget(
            text,
            target,
            np.flatnonzero(text.input_ids == 102).tolist(),
            np.flatnonzero(shift_right(target.input_ids, 102) == 102).tolist(),
            Pooling(2, "mean"),
        )
        for text, target in found
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
        assert_target_result(result, FakeEngine(config), pair, selection)
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


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"targets": ["a", "b"]}, "2 targets of 1 inputs"),
        ({"targets": []}, "targets: a text, or a list of texts"),
        ({"targets": ["a"], "maps": []}, "maps: "),
        ({"targets": ["a"], "maps": ["cross", "cross"]}, "maps: a value is listed twice"),
        ({"maps": ["cross"]}, "maps: cross needs `targets`"),
        ({"targets": ["a"], "include": ["rollout"]}, "rollout is of the encoder"),
        ({"targets": ["a"], "layers": [3]}, "layers: 3 is not in -3 … 2 of the decoder"),
    ],
)
async def test_refusals(decoder_client: httpx.AsyncClient, body: dict[str, Any], says: str) -> None:
    response = await decoder_client.post("/attention", json={"inputs": ["c"], **body})
    assert_problem(response, 422, says=says)


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


async def test_vectors_are_the_encoders(
    decoder_client: httpx.AsyncClient, decoder_artifact: Artifact, artifact: Artifact
) -> None:
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as plain:
        replies = [
            await one.post("/encode", json={"inputs": TEXTS}) for one in (decoder_client, plain)
        ]
    assert replies[0].content == replies[1].content


async def test_too_large_is_refused_to_the_byte(decoder_artifact: Artifact) -> None:
    engine = AnsweringEngine(lambda _: None, decoder_artifact.manifest.config)
    body = {"inputs": TEXTS, "targets": TARGETS, "maps": ALL, "include": ["weights", "logprobs"]}
    async with serving(decoder_artifact, engine) as client:
        reply = await client.post("/attention", json=body, headers=BINARY)
    size, engine.batches = len(reply.content), 0
    async with serving(decoder_artifact, engine, max_response_bytes=size - 1) as client:
        response = await client.post("/attention", json=body, headers=BINARY)
        assert_problem(response, 413, says=f"about {size} bytes, more than {size - 1}")
        assert_problem(await client.post("/attention", json=body), 413, says="safetensors")
        assert engine.batches == 0


async def test_a_streamed_reply_is_complete(decoder_artifact: Artifact) -> None:
    """The reply has 3 MB in both forms; both are streamed a layer at a time."""
    inputs, targets = ["a " * 200, "b"], ["c " * 100, "d " * 250]
    body = {"inputs": inputs, "targets": targets, "maps": ALL, "include": ["weights", "logprobs"]}
    with listening(decoder_artifact, FakeEngine(decoder_artifact.manifest.config)) as (_, port):
        url = f"http://127.0.0.1:{port}/attention"
        binary, json = (httpx.post(url, json=body, headers=one) for one in (BINARY, {}))
    assert binary.headers["content-length"] == str(len(binary.content))
    assert "content-length" not in json.headers
    tensors = load(binary.content)
    assert len(binary.content) > 2**20
    bounds = tensors["target_cu_seqlens"]
    for i, result in enumerate(json.json()["results"]):
        for name in ("attention", "decoder_attention", "cross_attention"):
            np.testing.assert_array_equal(
                np.array(result[name], "f4"), tensors[f"{name}.{i}"], strict=True
            )
        own = tensors["target_logprobs"][bounds[i] : bounds[i + 1]]
        np.testing.assert_array_equal(np.array(result["target_logprobs"], "f4"), own, strict=True)


def random_body(chance: random.Random) -> dict[str, Any]:
    words = ["a", "b", "street", "tired", "it"]
    body: dict[str, Any] = {
        name: [" ".join(chance.choices(words, k=chance.randint(0, 20))) for _ in range(3)]
        for name in ("inputs", "targets")
    }
    body["maps"] = chance.sample(ALL, chance.randint(1, 3))
    body["include"] = chance.sample(["weights", "stats", "logprobs"], chance.randint(1, 3))
    body["layers"] = chance.choice([None, [1], [1, 0]])
    if chance.random() < 0.5:
        body["ablate"] = chance.sample(ABLATE, chance.randint(1, 3))
    return body


async def test_requests_in_company_do_not_mix(decoder_artifact: Artifact) -> None:
    chance = random.Random(0)
    asked = [(random_body(chance), chance.choice([{}, BINARY])) for _ in range(30)]
    config = decoder_artifact.manifest.config
    engine = FakeEngine(config, batch_seconds=0.001, concurrency=2)
    async with serving(decoder_artifact, engine) as client:

        async def ask(body: dict[str, Any], headers: dict[str, str]) -> bytes:
            response = await client.post("/attention", json=body, headers=headers)
            assert response.status_code == 200, response.text
            return response.content

        alone = [await ask(*one) for one in asked]
        together = await asyncio.gather(*(ask(*one) for one in asked))
    assert together == alone
    assert len(set(alone)) == 30
