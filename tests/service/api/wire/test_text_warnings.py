"""Every dialect says which texts were cut, lack a prompt, or have many unknown tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.inference.timings import Warnings
from tests.service.api.kserve.wire import in_bytes, in_json
from tests.service.harness import Client, serving
from tests.service.several import fake_of, variant

pytestmark = pytest.mark.anyio
LONG, UNKNOWN = "water " * 40, "\U0001f9ff " * 3
TEXTS = [LONG, UNKNOWN, "water", LONG]
COUNTS = {"truncated": 2, "prompt_missing": 4, "unknown_tokens": 1}
HEADERS = {"x-truncated": "2", "x-prompt-missing": "4", "x-unknown-tokens": "1"}
CUT = {"inputs": TEXTS, "truncate": True}
PAIR = [[LONG, UNKNOWN], ["water", LONG]]
Field = Callable[[Any], Any]


def warnings(reply: Any) -> Any:
    return reply["warnings"]


def sentences(reply: Any) -> Any:
    assert reply["meta"]["warnings"] == Warnings(**COUNTS).sentences()
    return COUNTS


DIALECTS: dict[str, tuple[str, dict[str, Any], Field | None]] = {
    "native": ("/encode", CUT, warnings),
    "native, attention": ("/attention", CUT, warnings),
    "native, explain": ("/explain", {"inputs": PAIR, "truncate": True}, warnings),
    "native, scores": ("/attention/scores", CUT | {"layer": 0, "head": 0}, warnings),
    "TEI": ("/embed", {"inputs": TEXTS}, None),
    "TEI, tokens": ("/embed_all", {"inputs": TEXTS}, None),
    "TEI, root": ("/", {"inputs": TEXTS}, None),
    "Infinity": ("/embeddings", {"input": TEXTS}, warnings),
    "Cohere": ("/v2/embed", {"texts": TEXTS, "input_type": "clustering"}, sentences),
    "vLLM": ("/pooling", {"input": TEXTS, "truncate_prompt_tokens": -1}, warnings),
    "vLLM, pairs": (
        "/score",
        {"text_1": TEXTS[:2], "text_2": TEXTS[2:], "truncate_prompt_tokens": -1},
        warnings,
    ),
}


@pytest.fixture(scope="module")
async def client(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of a model of 16 tokens with prompts and without a default prompt."""
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": {"query": "find: "}})
    prompted = variant(artifact, "prompted", 32, sentence=sentence)
    async with serving(prompted, fake_of(prompted), max_length=16) as client:
        yield client


@pytest.fixture(scope="module")
async def usual(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Client]:
    """Yield a client of a model that cuts none of the texts and has no prompts."""
    async with serving(artifact, fake_of(artifact)) as client:
        yield client


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_dialect_reports_them_alone(client: Client, usual: Client, dialect: str) -> None:
    path, body, field = DIALECTS[dialect]
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert HEADERS.items() <= answer.headers.items()
    if field:
        assert field(answer.json()) == COUNTS
    plain = {name: _short(value) for name, value in body.items()}
    answer = await usual.post(path, json=plain)
    assert answer.status_code == 200, answer.text
    assert not HEADERS.keys() & answer.headers.keys()
    assert "warnings" not in answer.text


def _short(value: Any) -> Any:
    """Return a field with short and known texts in place of the texts of its lists."""
    if not isinstance(value, list):
        return value
    return [_short(one) if isinstance(one, list) else "water" for one in value]


async def test_the_binary_form_has_them_in_its_metadata(client: Client) -> None:
    accept = {"accept": "application/vnd.safetensors"}
    for path in ("/encode", "/attention", "/explain"):
        body = CUT if path != "/explain" else {"inputs": PAIR, "truncate": True}
        answer = await client.post(path, json=body, headers=accept)
        size = int.from_bytes(answer.content[:8], "little")
        metadata = json.loads(answer.content[8 : 8 + size])["__metadata__"]
        assert json.loads(metadata["warnings"]) == COUNTS
        assert HEADERS.items() <= answer.headers.items()


@pytest.mark.parametrize("outputs", [["pooled"], ["attention"], ["attention", "pooled"]])
@pytest.mark.parametrize("binary", [False, True])
async def test_kserve_has_them_in_its_parameters(
    client: Client, outputs: list[str], binary: bool
) -> None:
    parameters = {"truncate": True, "binary_data_output": binary}
    asked: dict[str, Any] = {
        "outputs": [{"name": name} for name in outputs],
        "parameters": parameters,
    }
    plain = {"json": in_json(TEXTS, [4], **asked)}
    options = in_bytes(TEXTS, [4], **asked) if binary else plain
    answer = await client.post("/v2/models/any/infer", **options)
    assert answer.status_code == 200, answer.text
    size = int(answer.headers.get("inference-header-content-length", len(answer.content)))
    assert json.loads(answer.content[:size])["parameters"] == COUNTS
    assert HEADERS.items() <= answer.headers.items()


async def test_openais_client_takes_the_field(client: Client) -> None:
    """Its models allow further fields; texts are not cut in this dialect."""
    from openai import AsyncOpenAI  # as in tests/drop_in: a second, of every process of tests

    theirs = AsyncOpenAI(api_key="-", base_url=f"{client.base_url}/v1", http_client=client)
    reply = await theirs.embeddings.create(model="any", input=["water", UNKNOWN])
    assert len(reply.data) == 2
    assert reply.model_extra["warnings"] == {"prompt_missing": 2, "unknown_tokens": 1}


async def test_a_prompt_that_is_given_is_not_missing(client: Client) -> None:
    for body in ({"prompt_name": "query"}, {"prompt_name": ""}):
        answer = await client.post("/encode", json={"inputs": "water", **body})
        assert answer.status_code == 200
        assert "x-prompt-missing" not in answer.headers
    cohere = {"texts": ["water"], "input_type": "search_query"}
    assert "x-prompt-missing" not in (await client.post("/v2/embed", json=cohere)).headers


async def test_texts_that_are_cut_further_than_to_the_limit_count(client: Client) -> None:
    """Cohere's `max_tokens`, and vLLM's `truncate_prompt_tokens`."""
    texts = ["water", "water " * 9]
    answer = await client.post("/v2/embed", json={"texts": texts, "max_tokens": 6})
    assert answer.headers["x-truncated"] == "1"
    body = {"input": texts, "truncate_prompt_tokens": 6}
    assert (await client.post("/pooling", json=body)).headers["x-truncated"] == "1"


@pytest.mark.slow
async def test_rankings_and_labels_report_them(
    exported: Callable[..., Artifact], cross_checkpoint: Path
) -> None:
    """A document that `max_tokens_per_doc` has cut counts once, however its pair fits."""
    async with serving(exported(cross_checkpoint, "cross")) as client:
        documents = ["a b c", "a " * 60, "b " * 5]
        asked: dict[str, Any] = {"query": "the cat", "documents": documents}
        for path in ("/v1/rerank", "/v2/rerank"):
            answer = await client.post(path, json=asked | {"max_tokens_per_doc": 4})
            assert answer.headers["x-truncated"] == "2", path
            warnings = answer.json()["meta"]["warnings"]
            assert warnings == ["2 texts were cut to the most tokens"]
        infinity = await client.post("/rerank", json=asked)
        assert infinity.json()["warnings"] == {"truncated": 1}
        for path, body in (
            ("/rerank", {"query": "the cat", "texts": documents}),
            ("/predict", {"inputs": [["a " * 60]]}),
            ("/classify", {"input": ["a " * 60]}),
        ):
            answer = await client.post(path, json=body)
            assert answer.headers["x-truncated"] == "1", answer.text
