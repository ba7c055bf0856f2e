"""`POST /v2/embed` in Cohere's form."""

from __future__ import annotations

import base64
import string
from typing import Any

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings
from transformers import AutoTokenizer

from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.service.api.tei.tasks import LABELS, serving_task
from tests.service.harness import Client, serving
from tests.service.several import variant

pytestmark = pytest.mark.anyio
URL = "/v2/embed"
TEXTS = ["What is Deep Learning?", "naïve café 😀", "a b c d e f g h"]
BODY: dict[str, Any] = {"model": "embed-v4.0", "input_type": "search_document", "texts": TEXTS}


async def floats(client: Client, **fields: Any) -> np.ndarray:
    """Return the vectors of a reply as `float`, `[B, D]`."""
    answer = await client.post(URL, json=BODY | fields)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["embeddings"]["float"], np.float32)


async def own(client: Client, inputs: Any, **fields: Any) -> np.ndarray:
    """Return the vectors of `/encode`, which other tests compare with oracles."""
    body = {"inputs": inputs, "outputs": ["pooled"], "normalize": True, **fields}
    results = (await client.post("/encode", json=body)).json()["results"]
    return np.array([one["pooled"] for one in results], np.float32)


async def test_a_reply_has_every_type(client: Client) -> None:
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = await client.post(URL, json=BODY | {"embedding_types": [*types, "float"]})
    reply = answer.json()
    assert reply.keys() == {"id", "response_type", "embeddings", "texts", "meta"}
    assert (reply["response_type"], reply["texts"]) == ("embeddings_by_type", TEXTS)
    tokens = int(answer.headers["x-compute-tokens"])
    units = {"input_tokens": tokens}
    assert reply["meta"].items() >= {"api_version": {"version": "2"}, "billed_units": units}.items()
    assert list(reply["embeddings"]) == types
    found = {name: reply["embeddings"][name] for name in types}
    expected = await own(client, TEXTS)
    np.testing.assert_allclose(found["float"], expected, atol=1e-6)
    np.testing.assert_allclose(np.array(found["int8"]) / 127, expected, atol=0.5 / 127 + 1e-6)
    np.testing.assert_array_equal(np.array(found["uint8"]), np.array(found["int8"]) + 128)
    for name in ("binary", "ubinary"):
        packed = quantize_embeddings(np.array(found["float"], np.float32), name)
        np.testing.assert_array_equal(found[name], packed)
    decoded = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]]
    np.testing.assert_array_equal(decoded, np.array(found["float"], np.float32))


async def test_the_first_version_gives_bare_vectors_where_no_type_is_named(client: Client) -> None:
    """As Cohere's `EmbedFloatsResponse`; null types are none."""
    for fields in ({}, {"embedding_types": None}):
        reply = (await client.post("/v1/embed", json=BODY | fields)).json()
        assert reply.keys() == {"id", "response_type", "embeddings", "texts", "meta"}
        assert (reply["response_type"], reply["texts"]) == ("embeddings_floats", TEXTS)
        assert reply["meta"]["api_version"] == {"version": "1"}
        np.testing.assert_array_equal(
            np.array(reply["embeddings"], np.float32), await floats(client)
        )


async def test_the_first_version_gives_types_that_are_named(client: Client) -> None:
    body = BODY | {"embedding_types": ["float", "int8"]}
    first, second = [(await client.post(url, json=body)).json() for url in ("/v1/embed", URL)]
    assert first["response_type"] == second["response_type"] == "embeddings_by_type"
    assert first["embeddings"] == second["embeddings"]
    assert first["meta"]["api_version"] == {"version": "1"}


async def test_dimensions_are_cut_and_then_normalised(client: Client) -> None:
    found, whole = await floats(client, output_dimension=8), await own(client, TEXTS)
    first = whole[:, :8]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


async def test_texts_are_cut_on_the_side_asked_for(client: Client, small_checkpoint: Any) -> None:
    """To `max_tokens` or what fits; the end by default, none with NONE."""
    text = " ".join(string.ascii_lowercase[n * n % 26] for n in range(600))
    for truncate, side in (("END", "right"), ("START", "left"), (None, "right")):
        reference = AutoTokenizer.from_pretrained(small_checkpoint, truncation_side=side)
        asked = {} if truncate is None else {"truncate": truncate}
        for most in (7, None):
            ids = reference(text, truncation=True, max_length=most or 512)["input_ids"]
            kept = reference.decode(ids, skip_special_tokens=True)
            found = await floats(client, texts=[text], max_tokens=most, **asked)
            np.testing.assert_allclose(found, await own(client, kept), atol=2e-5)
    for fields in ({"max_tokens": 7}, {}):
        refused = await client.post(
            URL, json=BODY | {"texts": [text], "truncate": "NONE", **fields}
        )
        assert refused.status_code == 400
        assert "tokens" in refused.json()["message"]


async def test_input_types_choose_the_checkpoints_prompts(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    """The prompts are sentence-transformers' own; without named prompts there is none."""
    prompts = {"query": "query: ", "passage": "passage: ", "clustering": "cluster: "}
    sentence = artifact.manifest.sentence.model_copy(update={"prompts": prompts})
    changed = variant(artifact, "prompted", 128, sentence=sentence)
    expected = {
        "search_query": "query: ",
        "search_document": "passage: ",
        "clustering": "cluster: ",
        "classification": "",
    }
    async with serving(changed, onnx_engine) as client:
        for kind, prefix in expected.items():
            found = await floats(client, input_type=kind)
            same = await own(client, [prefix + text for text in TEXTS])
            np.testing.assert_allclose(found, same, atol=1e-6)
        texts = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
        found = await floats(client, input_type="search_query", texts=None, inputs=texts)
        np.testing.assert_allclose(found, await floats(client, input_type="search_query"))


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"texts": ["a"] * 97}, "97 inputs in one request; 1 to 96 are taken"),
        ({"texts": []}, "0 inputs in one request"),
        ({"texts": None}, "one of `texts`, `images` and `inputs` is needed"),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "and no other beside it"),
        ({"texts": None, "images": ["data:"]}, "images[0] is a picture, and the model reads only"),
        ({"texts": None, "images": ["QQ=="]}, "images[0]: a data URL"),
        ({"texts": None, "inputs": [{"content": [IMAGE]}]}, "the model reads only texts"),
        ({"texts": None, "inputs": [{"content": [IMAGE, IMAGE]}]}, "is not a single text or pict"),
        ({"input_type": "image"}, "input_type image is for pictures"),
        ({"input_type": "images"}, "input_type: Input should be"),
        ({"embedding_types": ["int4"]}, "embedding_types.0: Input should be"),
        ({"embedding_types": []}, "embedding_types"),
        ({"truncate": "end"}, "truncate: Input should be"),
        ({"output_dimension": 129}, "output_dimension 129 is not in 1 … 128"),
        ({"output_dimension": 0}, "output_dimension 0 is not in"),
        ({"output_dimension": 12, "embedding_types": ["binary"]}, "a multiple of 8 features"),
        ({"max_tokens": 2}, "2 tokens leave no room"),
    ],
)
async def test_refusals(client: Client, fields: dict[str, Any], says: str) -> None:
    refused = await client.post(URL, json=BODY | fields)
    assert (refused.status_code, refused.json().keys()) == (400, {"message"})
    assert says in refused.json()["message"]


async def test_a_classifier_embeds_nothing(artifact: Artifact) -> None:
    async with serving_task(artifact, LABELS) as client:
        refused = await client.post(URL, json=BODY)
        assert (refused.status_code, refused.json().keys()) == (400, {"message"})


async def test_a_reply_is_bounded_before_anything_is_computed(
    artifact: Artifact, onnx_engine: OnnxEngine
) -> None:
    """A vector of 128 numbers in 15 bytes each, and a text that is repeated."""
    body = BODY | {"texts": ["a"]}
    for limit, status in ((15 * 128 + 6, 200), (15 * 128 + 5, 413)):
        async with serving(artifact, onnx_engine, max_response_bytes=limit) as client:
            assert (await client.post(URL, json=body)).status_code == status
