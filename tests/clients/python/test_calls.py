"""Every call against the application itself, in this process, compared with its own JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from headscope import HeadscopeError, Label, NotFound, Refused, Span, heads
from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.clients.python.fake import client_of
from tests.service.api.tei.tasks import LABELS, RANKS, SPARSE, TOKENS, serving_task
from tests.service.harness import serving
from tests.service.pictures import element, picture, pictures_of
from tests.service.several import fake_of, variant
from tests.service.with_targets import with_decoder

pytestmark = pytest.mark.anyio
TEXTS = ["The cat sat.", "", f"naïve 🙂 </s> [SEP] {'a word ' * 9}", "a dog", "on the mat"]
FILLED = [text for text in TEXTS if text]
"""Routes of TEI, which reject an empty text."""
PAIRS = [("What?", "The cat."), ("a", "")]


@pytest.fixture(scope="module")
async def both(artifact: Artifact, anyio_backend: str) -> AsyncIterator[Any]:
    """Return the client, and a plain JSON client, of a service that takes two texts a request."""
    engine = FakeEngine(artifact.manifest.config)
    async with (
        serving(artifact, engine, max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        yield client, plain


async def posted(plain: Any, path: str, **body: Any) -> Any:
    reply = await plain.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def one_by_one(plain: Any, path: str, inputs: Any, **body: Any) -> list[Any]:
    return [(await posted(plain, path, inputs=[one], **body))["results"][0] for one in inputs]


def assert_tokens(found: Any, expected: Any, text: Any) -> None:
    assert found.texts == ((text,) if isinstance(text, str) else text)
    for name in ("tokens", "token_ids", "segment_ids", "truncated"):
        assert getattr(found, name) == expected[name]
    assert found.offsets == [tuple(pair) for pair in expected["offsets"]]


async def test_pictures(artifact: Artifact) -> None:
    own, files = pictures_of(artifact), [picture(1), picture(2)]
    async with serving(own, fake_of(own)) as plain, client_of(plain) as client:
        found = await client.encode(files)
        expected = await one_by_one(plain, "/encode", map(element, files))
        (reply,) = await client.attention(files[0], layers=[0], heads=[0])
    for one, result in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.pooled, result["pooled"], rtol=1e-6)
        assert one.tokens == reply.tokens == ["[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
        assert [word.text for word in one.words] == one.tokens
    assert reply.weights.shape == (1, 1, 7, 7)


@pytest.mark.parametrize(
    ("inputs", "asked"),
    [
        (TEXTS, {"layer": 1, "pooling": "cls", "truncate": True}),
        (PAIRS, {"layer": 1, "pooling": "cls"}),
        (TEXTS, {"layers": [2, 0], "ablate": [{"layer": 0, "head": 1}]}),
    ],
)
async def test_encode(both, inputs, asked):
    client, plain = both
    found = await client.encode(inputs, **asked)
    expected = await one_by_one(plain, "/encode", inputs, **asked)
    for one, result, text in zip(found, expected, inputs, strict=True):
        assert_tokens(one, result, text)
        np.testing.assert_allclose(one.embeddings, result["embeddings"], rtol=1e-6)
        np.testing.assert_allclose(one.pooled, result["pooled"], rtol=1e-6)
        assert (one.model, one.backend) == ("small", "fake")
        assert one.layers == asked.get("layers", [])
    rows = await client.embed(inputs, **asked)
    np.testing.assert_array_equal(rows, found.pooled)
    shape = (*((2,) if "layers" in asked else ()), len(inputs), 128)
    assert (rows.shape, rows.dtype) == (shape, np.float32)


@pytest.mark.parametrize("name", ["float16", "uint8", "binary"])
async def test_types_of_vectors(both, name):
    client, plain = both
    fields = {"vector_type": name, "vector_ranges": [[-1] * 128, [1] * 128]}
    fields = fields if name == "uint8" else {"vector_type": name}
    found = await client.embed(TEXTS, **fields)
    expected = await one_by_one(plain, "/encode", TEXTS, **fields)
    assert found.dtype == np.dtype({"binary": "int8"}.get(name, name))
    if name == "uint8":
        (encoding,) = await client.encode(["a"], **fields)
        np.testing.assert_array_equal(encoding.vector_ranges, fields["vector_ranges"])
    np.testing.assert_array_equal(found, np.array([one["pooled"] for one in expected], found.dtype))


async def test_chunks_and_spans_of_texts_in_windows(both):
    client, plain = both
    texts = ["The cat sat. The dog ran. " * 100, "a cat"]
    asked = {"overflow": "windows", "pooling": "mean", "layers": [0, 2]}
    found = await client.encode(
        texts, **asked, chunk={"by": "sentences", "size": 60, "overlap": 20}, outputs=["pooled"]
    )
    spans = [one.spans for one in found]
    expected = (await posted(plain, "/encode", inputs=texts, spans=spans, **asked))["results"]
    by_spans = await client.encode(texts, spans=spans, **asked)
    for one, other, result in zip(found, by_spans, expected, strict=True):
        assert one.spans == [tuple(span) for span in result["spans"]]
        assert one.windows == result["windows"]
        assert one.pooled.shape == (2, 128)
        np.testing.assert_array_equal(one.span_vectors, other.span_vectors)
        wanted = np.array(result["span_vectors"], np.float32).reshape(2, -1, 128)
        np.testing.assert_allclose(one.span_vectors, wanted, rtol=1e-6)
    assert found[0].windows > 1
    assert found.span_vectors.shape == (2, sum(map(len, spans)), 128)


async def test_one_text_is_a_list_of_one(both):
    client, _ = both
    assert (await client.embed("a cat")).shape == (1, 128)
    assert len((await client.encode("a cat"))[0].words) == 4
    assert (await client.embed([])).shape == (0, 0)


@pytest.mark.parametrize("inputs", [TEXTS, PAIRS])
async def test_attention(both, inputs):
    client, plain = both
    names = ["weights", "stats", "rollout", "norms", "norm_rollout"]
    asked = {"layers": [-1, 0], "heads": [1], "include": names}
    found = await client.attention(inputs, **asked)
    expected = await one_by_one(plain, "/attention", inputs, **asked)
    for one, result, text in zip(found, expected, inputs, strict=True):
        assert_tokens(one, result, text)
        assert (one.layers, one.heads) == ([1, 0], [1])
        np.testing.assert_allclose(one.weights, result["attention"], atol=1e-6)
        np.testing.assert_allclose(one.rollout, result["rollout"], atol=1e-6)
        np.testing.assert_allclose(one.norms, result["norms"], rtol=1e-6)
        np.testing.assert_allclose(one.norm_rollout, result["norm_rollout"], atol=1e-6)
        assert one.statistics.keys() == result["stats"].keys()
    half = await client.attention(inputs, dtype="float16", top_k=2)
    assert half[0].tensors["attention.values"].dtype == np.float16


async def test_parts_of_maps(both):
    client, plain = both
    asked = {"queries": [-1, 0], "max_size": 3, "include": ["weights", "norms"]}
    found = await client.attention(PAIRS, **asked)
    expected = await one_by_one(plain, "/attention", PAIRS, **asked)
    for one, result in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.weights, result["attention"], atol=1e-6)
        np.testing.assert_allclose(one.norms, result["norms"], rtol=1e-6)
        assert one.weights.shape[2:] == (2, 3)
        assert one.tokens_of("queries") == [[place] for place in result["queries"]]
        assert one.tokens_of("keys") == [[*range(*ends)] for ends in result["bins"]["keys"]]
        title = f"{one.tokens[-1]} → {one.tokens[0]}…{one.tokens[one.tokens_of('keys')[0][-1]]}: "
        assert title in one.heat_map(0, 1).html()
        for whole in (one.to_bertviz, lambda one=one: one.word_weights):
            with pytest.raises(HeadscopeError, match="without queries, keys and max_size"):
                whole()


async def test_a_text_that_is_refused_has_its_place_in_the_list(both):
    client, _ = both
    with pytest.raises(Refused, match=r"422: inputs\[3\] has .*\[2\] to \[3\] of 5\)") as failed:
        await client.embed([*TEXTS[:3], "word " * 600, "last"])
    assert failed.value.inputs == range(2, 4)
    assert len(failed.value.request_id) == 32
    assert failed.value.index == 3
    with pytest.raises(TypeError, match=r"inputs\[1\]: texts and pairs"):
        await client.encode(["a", ("b", "c")])
    with pytest.raises(TypeError, match=r"inputs\[0\] is not a text, a pair"):
        await client.encode([["a", "b", "c"]])


@pytest.mark.parametrize("name", ["encode", "embed", "attention"])
async def test_a_text_that_is_refused_costs_the_others_nothing(both, name):
    client, _ = both
    ask = getattr(client, name)
    long = "word " * 600
    found = await ask([*TEXTS[:3], long, "last", long], on_error="return")
    expected = await ask([*TEXTS[:3], "last"])
    assert [(i, one.index) for i, one in enumerate(found) if isinstance(one, Refused)] == [
        *((3, 3), (5, 5))
    ]
    answered = [one for one in found if not isinstance(one, Refused)]
    for one, other in zip(answered, expected, strict=True):
        if name == "embed":
            np.testing.assert_array_equal(one, other)
        else:
            assert one.tokens == other.tokens
    with pytest.raises(Refused, match="layers: 99 is not in"):
        await client.attention(TEXTS, layers=[99], on_error="return")


async def test_info_and_models(both):
    client, plain = both
    found, expected = await client.info(), (await plain.get("/info")).json()
    assert found.fields == expected
    assert (found.model_id, found.layers, found.max_client_batch_size) == ("small", 2, 2)
    assert [one.id for one in await client.models()] == ["small"]


async def test_labels_of_texts_and_pairs(artifact):
    inputs = [*FILLED, *PAIRS]
    async with (
        serving_task(artifact, LABELS, max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        found = await client.predict(inputs, raw_scores=True)
        for one, text in zip(found, inputs, strict=True):
            body = [[text] if isinstance(text, str) else text]
            [expected] = await posted(plain, "/predict", inputs=body, raw_scores=True)
            assert one == tuple(Label(**label) for label in expected)
        with pytest.raises(Refused, match="424: small"):
            await client.rerank("q", TEXTS)


async def test_spans(artifact):
    async with serving_task(artifact, TOKENS) as plain, client_of(plain) as client:
        [found] = await client.predict("The cat sat on the mat", aggregation="none")
        expected = await posted(
            plain, "/predict", inputs="The cat sat on the mat", aggregation="none"
        )
        assert found == tuple(Span(**span) for span in expected)
        assert found


async def test_ranks_of_several_requests_are_those_of_one(artifact):
    async with (
        serving_task(artifact, RANKS, max_client_batch_size=2) as few,
        serving_task(artifact, RANKS) as plain,
        client_of(few) as client,
    ):
        found = await client.rerank("what is it", TEXTS)
        expected = await posted(plain, "/rerank", query="what is it", texts=TEXTS, return_text=True)
        assert [(one.index, one.text) for one in found] == [
            (one["index"], one["text"]) for one in expected
        ]
        assert [one.score for one in found] == [one["score"] for one in expected]
        with pytest.raises(TypeError, match="a list of texts is needed"):
            await client.rerank("q", "text")


async def test_sparse_vectors_and_their_words(artifact):
    async with (
        serving_task(artifact, SPARSE, max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        found = await client.embed_sparse(FILLED)
        encoded = await client.encode(FILLED, outputs=["sparse"])
        for one, other, text in zip(found, encoded, FILLED, strict=True):
            [expected] = await posted(plain, "/embed_sparse", inputs=text)
            assert one.indices.tolist() == [item["index"] for item in expected]
            np.testing.assert_allclose(one.values, [item["value"] for item in expected])
            np.testing.assert_array_equal(other.sparse.indices, one.indices)
            np.testing.assert_allclose(other.sparse.values, one.values)
        with pytest.raises(HeadscopeError, match='request it \\(outputs "multivector"\\)'):
            _ = encoded[0].multivector
        assert await client.vocabulary([1, 0]) == ["[unused0]", "[PAD]"]
        assert len(await client.vocabulary()) == artifact.manifest.config.vocab_size


async def test_one_of_several_models(artifact):
    models = [variant(artifact, "a", 128), variant(artifact, "b/é", 32)]
    async with serving(models, list(map(fake_of, models))) as plain, client_of(plain) as client:
        assert (await client.embed(TEXTS, model="b/é")).shape == (5, 32)
        assert (await client.embed(TEXTS)).shape == (5, 128)
        assert (await client.info("b/é")).hidden_size == 32
        assert [one.id for one in await client.models()] == ["a", "b/é"]
        for call in (client.embed("a", model="c"), client.embed(TEXTS, model="c")):
            with pytest.raises(NotFound, match=r"404: .*b/é"):
                await call


async def test_attention_of_texts_with_targets(artifact):
    """With two texts per request, each keeps its own target."""
    served = with_decoder(artifact)
    targets = ["Le chat.", "", f"naïf 🙂 {'un mot ' * 9}", "un chien", "sur le tapis"]
    asked = {
        "maps": ["encoder", "decoder", "cross"],
        "include": ["weights", "stats", "logprobs"],
        "layers": [-1, 0],
        "ablate": [{"layer": 0, "head": 1, "map": "cross"}],
    }
    engine = FakeEngine(served.manifest.config)
    async with (
        serving(served, engine, max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        found = await client.attention(TEXTS, targets=targets, **asked)
        (alone,) = await client.attention(TEXTS[0], targets=targets[0])
        for one, text, target in zip(found, TEXTS, targets, strict=True):
            reply = await posted(plain, "/attention", inputs=[text], targets=[target], **asked)
            (result,) = reply["results"]
            assert_tokens(one, result, text)
            own = one.target
            assert own is not None
            assert (own.text, own.truncated) == (target, False)
            assert (own.tokens, own.token_ids) == (
                result["target_tokens"],
                result["target_token_ids"],
            )
            assert own.offsets == [tuple(pair) for pair in result["target_offsets"]]
            for name in ("layers", "heads", "decoder_layers", "decoder_heads"):
                assert getattr(one, name) == reply[name]
            maps = {
                "attention": one.weights,
                "decoder_attention": one.decoder_weights,
                "cross_attention": one.cross_weights,
                "target_logprobs": one.target_logprobs,
            }
            for name, array in maps.items():
                np.testing.assert_allclose(array, result[name], rtol=1e-6)
            for shift in ("pooled_shift", "target_logprob_shift"):
                np.testing.assert_allclose(one.tensors[shift], result[shift], atol=1e-6)
            assert one.cross_statistics.keys() == result["cross_stats"].keys()
            assert one.decoder_statistics.keys() == one.statistics.keys()
            np.testing.assert_allclose(
                one.cross_statistics["sep"], result["cross_stats"]["sep"], rtol=1e-5
            )
        assert alone.cross_weights.shape[2:] == (len(alone.target.tokens), len(alone.tokens))
        info = await client.info()
        assert (info.decoder_layers, info.decoder_heads) == (3, 4)


def test_each_input_has_one_target():
    with pytest.raises(ValueError, match="1 targets of 2 inputs: give one for each input"):
        heads.attention(["a", "b"], targets="c")
    with pytest.raises(TypeError, match=r"targets\[1\] is not a text"):
        heads.attention(["a", "b"], targets=["c", 1])
