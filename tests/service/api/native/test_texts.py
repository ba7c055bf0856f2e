"""JSON with impossible requests is refused with a reason that does not repeat the input."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from model.artifact.manifest import Artifact
from service.api.requests import LenientRequest
from service.api.wire.media import JSON_BYTES_PER_FLOAT, SAFETENSORS
from service.engines.onnx import OnnxEngine
from tests.service.harness import assert_problem, serving

pytestmark = pytest.mark.anyio
CANARY = "c4n4ry"
BOTH = ["/encode", "/attention"]
ALL = [*BOTH, "/verify"]
ENCODE, ATTENTION = ["/encode"], ["/attention"]


@pytest.fixture(autouse=True)
async def canary(client: httpx.AsyncClient) -> AsyncIterator[None]:
    """Check that a good request gets the same reply before and after the test."""
    before = await client.post("/attention", json={"inputs": ["still", "here?"]})
    assert before.status_code == 200
    yield
    after = await client.post("/attention", json={"inputs": ["still", "here?"]})
    assert after.content == before.content


BAD: list[tuple[list[str], dict[str, Any], str]] = [
    (ALL, {}, "inputs: Field required"),
    (ALL, {"inputs": None}, "inputs: "),
    (ALL, {"inputs": True}, "inputs: "),
    (ALL, {"inputs": {CANARY: CANARY}}, "inputs: "),
    (ALL, {"inputs": []}, "inputs: at least one text"),
    (ALL, {"inputs": [1]}, "inputs[0]"),
    (ALL, {"inputs": [CANARY, 1]}, "inputs[1] is no text"),
    (ALL, {"inputs": [CANARY, [CANARY, CANARY]]}, "inputs[1] is no text"),
    (ALL, {"inputs": [[CANARY, CANARY], CANARY]}, "inputs[1] is neither"),
    (ALL, {"inputs": [[CANARY] * 3]}, "inputs[0] is neither"),
    (ALL, {"inputs": [[CANARY, 1]]}, "inputs[0] is neither"),
    (ALL, {"inputs": [[CANARY, CANARY], [CANARY, [CANARY]]]}, "inputs[1] is neither"),
    (ALL, {"inputs": [{"0": CANARY, "1": CANARY}]}, "inputs[0] is neither"),
    (ALL, {"inputs": list(range(40_000))}, "inputs[0] is neither"),
    (ALL, {"inputs": [CANARY, *range(40_000)]}, "inputs[1] is no text"),
    (ALL, {"inputs": [[CANARY, CANARY], *range(40_000)]}, "inputs[1] is neither"),
    (ALL, {"inputs": ["a"] * 513}, "513 inputs in one request; at most 512"),
    (ALL, {"inputs": ["ok", "=" + " a" * 600]}, "inputs[1] has 603 tokens; at most 512 fit"),
    (ALL, {"inputs": CANARY + "x" * 32_763}, "has 32769 characters; at most 32768"),
    (ALL, {"inputs": "a", "truncate": 1}, "truncate: "),
    (ALL, {"inputs": "a", "input": CANARY}, "input: Extra inputs are not permitted"),
    (ALL, {"inputs": "a", "layer ": 1}, "?: Extra inputs are not permitted"),
    (ALL, {"inputs": "a", f"<{CANARY}>": 1}, "?: Extra inputs are not permitted"),
    (ALL, {"inputs": "a", "\0" * 100_000: 1}, "?: Extra inputs are not permitted"),
    (ALL, {"inputs": "a", CANARY + "\U0001f600" * 10_000: 1}, "?: Extra inputs are not permitted"),
    (ALL, {f"x{n}": CANARY for n in range(60)}, "x0: Extra inputs are not permitted"),
    (ALL, {"inputs": "a", **{f"x{n}": 1 for n in range(30_000)}}, "too many fields"),
    (BOTH, {"inputs": "a", "truncation_direction": "up"}, "truncation_direction: "),
    (BOTH, {"inputs": "a", "prompt_name": CANARY}, "unknown prompt_name; this model names: none"),
    (BOTH, {"inputs": "a", "prompt_name": 1}, "prompt_name: "),
    (BOTH, {"inputs": "a", "backend": "fake"}, "backend: "),
    (BOTH, {"inputs": "a", "backend": CANARY}, "backend: "),
    (ENCODE, {"inputs": "a", "outputs": []}, "outputs: "),
    (ENCODE, {"inputs": "a", "outputs": "pooled"}, "outputs: "),
    (ENCODE, {"inputs": "a", "outputs": [CANARY]}, "outputs.0: "),
    (ENCODE, {"inputs": "a", "outputs": ["pooled", "pooled"]}, "outputs: a value is listed twice"),
    (ENCODE, {"inputs": "a", "layer": 3}, "layer 3 is not in -3 … 2"),
    (ENCODE, {"inputs": "a", "layer": -4}, "layer -4 is not in -3 … 2"),
    (ENCODE, {"inputs": "a", "layer": 10**30}, "layer: "),
    (ENCODE, {"inputs": "a", "layer": True}, "layer: "),
    (ENCODE, {"inputs": "a", "pooling": "median"}, "pooling: "),
    (ENCODE, {"inputs": "a", "normalize": 0}, "normalize: "),
    (ENCODE, {"inputs": "a", "dimensions": 0}, "dimensions: "),
    (ENCODE, {"inputs": "a", "dimensions": 129}, "dimensions 129 is more than the model's 128"),
    (ENCODE, {"inputs": "a", "dimensions": 2**63 - 1}, "is more than the model's 128"),
    (ENCODE, {"inputs": "a", "encoding_format": "hex"}, "encoding_format: "),
    (ATTENTION, {"inputs": "a", "layer": 0}, "layer: Extra inputs are not permitted"),
    (ENCODE, {"inputs": "a", "top_k": 3}, "top_k: Extra inputs are not permitted"),
    (ATTENTION, {"inputs": "a", "top_k": 0}, "top_k: "),
    (ATTENTION, {"inputs": "a", "top_k": True}, "top_k: "),
    (ATTENTION, {"inputs": "a", "top_k": 10**30}, "top_k: "),
    (ATTENTION, {"inputs": "a", "top_k": 1, "include": ["stats"]}, "top_k is of the weights"),
    (ATTENTION, {"inputs": "a", "maps": []}, "maps: "),
    (ATTENTION, {"inputs": "a", "maps": ["cross", "cross"]}, "maps: a value is listed twice"),
    (ATTENTION, {"inputs": "a", "include": []}, "include: "),
    (ATTENTION, {"inputs": "a", "include": "stats"}, "include: "),
    (ATTENTION, {"inputs": "a", "include": [CANARY]}, "include.0: "),
    (ATTENTION, {"inputs": "a", "include": ["stats", "stats"]}, "include: a value is listed twice"),
    (ATTENTION, {"inputs": "a", "ablate": []}, "ablate: "),
    (ATTENTION, {"inputs": "a", "ablate": [0]}, "ablate.0: "),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 0}]}, "ablate.0.head: Field required"),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": True, "head": 0}]}, "ablate.0.layer: "),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 0, "head": 0, f"<{CANARY}>": 0}]}, "?: Extra"),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 0, "head": 0}] * 10_000}, "ablate: "),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 10**30, "head": 0}]}, "ablate.0.layer: "),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 2, "head": 0}]}, "2 is not in -2 … 1"),
    (ATTENTION, {"inputs": "a", "ablate": [{"layer": 0, "head": -3}]}, "-3 is not in -2 … 1"),
    (
        ATTENTION,
        {"inputs": "a", "ablate": [{"layer": 1, "head": 0}, {"layer": -1, "head": -2}]},
        "ablate: one is listed twice",
    ),
    (ATTENTION, {"inputs": "a", "dtype": "float64"}, "dtype: "),
    (ATTENTION, {"inputs": "a", "dtype": "float16"}, "float16 is for the binary form"),
] + [
    (ATTENTION, {"inputs": "a", name: value}, f"{name}: {says}")
    for name in ("layers", "heads")
    for value, says in [
        ([], ""),
        (0, ""),
        ([True], ""),
        ([None], ""),
        ([10**30], ""),
        ([2], "2 is not in -2 … 1"),
        ([0, -3], "-3 is not in -2 … 1"),
        ([2**63 - 1], "9223372036854775807 is not in -2 … 1"),
        ([1, 1], "a value is listed twice"),
        ([1, -1], "one is listed twice"),
        (list(range(50_000)), "2 is not in -2 … 1"),
        ([0] * 50_000, "a value is listed twice"),
        ([CANARY] * 50_000, ""),
    ]
]


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        pytest.param(route, body, says, id=f"{route}-{number}-{says[:30]}")
        for number, (routes, body, says) in enumerate(BAD)
        for route in routes
    ],
)
async def test_refused(
    client: httpx.AsyncClient, route: str, body: dict[str, Any], says: str
) -> None:
    content = json.dumps(body)
    response = await client.post(
        route, content=content, headers={"content-type": "application/json"}
    )
    too_long = "tokens; at most" in says or "characters" in says
    assert_problem(response, 422, says, error_type="Tokenizer" if too_long else "Validation")
    assert CANARY not in response.text


async def test_a_reply_too_large_is_refused_before_it_is_computed(
    artifact: Artifact, onnx_engine: OnnxEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_engine, "run", None)  # any call fails
    binary = {"accept": SAFETENSORS}
    cases: list[tuple[str, dict[str, Any], dict[str, str], int]] = [
        ("/encode", {"outputs": ["tokens"]}, {}, 10 * 128 * JSON_BYTES_PER_FLOAT),
        ("/encode", {"outputs": ["tokens"], "encoding_format": "base64"}, {}, 10 * 128 * 6),
        ("/encode", {"outputs": ["tokens"]}, binary, 10 * 128 * 4),
        ("/encode", {"outputs": ["pooled"]}, {}, 128 * JSON_BYTES_PER_FLOAT),
        ("/encode", {"outputs": ["pooled"], "dimensions": 100}, binary, 100 * 4),
        ("/encode", {}, binary, (10 + 1) * 128 * 4),
    ]
    async with serving(artifact, onnx_engine, max_response_bytes=200) as client:
        for route, asked, headers, size in cases:
            body = {"inputs": "one two three four five six seven eight", **asked}
            response = await client.post(route, json=body, headers=headers)
            assert_problem(response, 413, says=f"about {size} bytes, more than 200")


async def test_a_request_that_no_queue_could_hold_is_refused(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    async with serving(artifact, onnx_engine, max_queue_tokens=20) as client:
        response = await client.post("/encode", json={"inputs": ["a b c d", "a b c d"]})
        assert_problem(response, 422, says="12 tokens; at most 10 are taken at a time")
        assert (await client.post("/encode", json={"inputs": "a b c d"})).status_code == 200


async def test_the_settings_are_the_limits(artifact: Artifact, onnx_engine: OnnxEngine) -> None:
    limits = {"max_length": 8, "max_characters": 100, "max_client_batch_size": 2}
    async with serving(artifact, onnx_engine, **limits) as client:
        for inputs, says, kind in [
            (["a", "b", "c"], "3 inputs in one request; at most 2", "Validation"),
            ("a b c d e f g", "inputs[0] has 9 tokens; at most 8 fit", "Tokenizer"),
            ("a" * 101, "inputs[0] has 101 characters; at most 100", "Tokenizer"),
        ]:
            response = await client.post("/encode", json={"inputs": inputs})
            assert_problem(response, 422, says, error_type=kind)
        assert (await client.post("/encode", json={"inputs": ["a b c d e f"] * 2})).is_success


async def test_a_prompt_of_the_checkpoint_is_taken(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": {"query": "find: "}})
    manifest = artifact.manifest.model_copy(update={"sentence": sentence})
    async with serving(dataclasses.replace(artifact, manifest=manifest), onnx_engine) as client:
        body = {"inputs": "it", "prompt_name": "query"}
        (result,) = (await client.post("/encode", json=body)).json()["results"]
        assert result["tokens"] == ["[CLS]", "find", ":", "it", "[SEP]"]
        assert result["offsets"] == [[0, 0], [0, 0], [0, 0], [0, 2], [0, 0]]
        refused = await client.post("/encode", json=body | {"prompt_name": "passage"})
        assert_problem(refused, 422, says="this model names: query")


def test_unknown_fields_are_ignored_unless_there_are_very_many() -> None:
    assert LenientRequest.model_validate({"model": "a", "x": 1}) == LenientRequest(model="a")
    with pytest.raises(ValidationError, match="too many fields"):
        LenientRequest.model_validate({f"x{n}": n for n in range(65)})
    with pytest.raises(ValidationError, match="valid string"):
        LenientRequest.model_validate({"model": 1})
