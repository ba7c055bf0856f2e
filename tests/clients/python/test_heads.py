"""Attention of heads: heat maps, BertViz's views, labels, and the scores of one head."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headscope import HeadscopeError, HeadScores, Refused, Reply, Target
from headscope.display import MAX_TOKENS
from headscope.heads import head_scores, read_head_scores
from headscope.reading import read_info
from model.artifact.manifest import Artifact
from service.engines.onnx import OnnxEngine
from tests.clients.python.fake import INFO, client_of, text_fields
from tests.clients.python.page import NASTY, Page
from tests.service.harness import serving


def reply(tokens: list[str], **tensors: np.ndarray) -> Reply:
    return Reply(**text_fields(tokens), layers=[3, 1], heads=[0, 7], tensors=tensors)


def test_names_are_text_and_nothing_runs_or_is_fetched():
    maps = np.random.default_rng(0).dirichlet(np.ones(4), (2, 2, 4)).astype(np.float16)
    found = reply(NASTY, attention=maps)
    page = Page(found._repr_html_())
    assert {tag for tag, _ in page.tags} == {"div", "table", "tr", "th", "td"}
    names = {name for _, attributes in page.tags for name in attributes}
    assert names == {"style", "title"}
    assert page.text[:2] == ["<m> (onnx), 4 tokens", "mean of 2 layers, mean of 2 heads"]
    assert page.text[2:6] == NASTY
    mean = maps.astype(np.float64).mean(axis=(0, 1))
    for cell, (q, k) in zip(page.cells(), np.ndindex(4, 4), strict=True):
        name, _, value = cell["title"].rpartition(": ")
        assert name == f"{NASTY[q]} → {NASTY[k]}"
        assert float(value) == pytest.approx(mean[q, k], abs=1e-3)
        alpha = float(cell["style"].rpartition(",")[2].rstrip(")"))
        assert alpha == pytest.approx(mean[q, k] / mean.max(), abs=2e-3)


def test_one_head_by_the_numbers_it_has():
    maps = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
    found = reply(["a", "b"], attention=maps)
    np.testing.assert_array_equal(found.heat_map(1, 7).weights, maps[1, 1])
    np.testing.assert_array_equal(found.heat_map(head=0).weights, maps[:, 0].mean(axis=0))
    assert found.heat_map(1, 7).title == "layer 1, head 7"
    assert Page(found.heat_map(layer=3)._repr_html_()).text[0] == "layer 3, mean of 2 heads"
    with pytest.raises(ValueError, match="not in list"):
        found.heat_map(layer=0)


def test_a_long_text_is_cut_and_says_so():
    size = MAX_TOKENS + 5
    found = reply(["t"] * size, attention=np.zeros((2, 2, size, size), np.float32))
    page = Page(found._repr_html_())
    assert len(page.cells()) == MAX_TOKENS**2
    assert f"the first {MAX_TOKENS} of {size} tokens" in page.text


def test_without_maps_there_are_the_tokens():
    page = Page(reply(NASTY)._repr_html_())
    assert [tag for tag, _ in page.tags] == ["div", "div", "div", *["code"] * 4]
    assert [text for text in page.text if text.strip()][1:] == NASTY


S, T = 3, 4


def decoder_reply(**tensors: np.ndarray) -> Reply:
    """Return maps of two encoder layers and one decoder layer, each with its own heads."""
    return Reply(
        **text_fields(["s"] * S),
        layers=[3, 1] if "attention" in tensors else [],
        heads=[0, 7] if "attention" in tensors else [],
        tensors=tensors,
        target=Target("", ["t"] * T, [2] * T, [(0, 1)] * T, truncated=False),
        decoder_layers=[2],
        decoder_heads=[5, 1, 0],
    )


CROSS = np.random.default_rng(0).random((1, 3, T, S), np.float32)
OWN = np.random.default_rng(1).random((1, 3, T, T), np.float32)
ENCODER = np.random.default_rng(2).random((2, 2, S, S), np.float32)


def test_kinds_have_equal_layers_and_heads_by_their_own_numbers():
    torch = pytest.importorskip("torch")
    every = decoder_reply(attention=ENCODER, decoder_attention=OWN, cross_attention=CROSS)
    found = every.to_bertviz("model_view")
    assert (found["include_layers"], found["include_heads"]) == ([1, 2, 3], [0, 1, 5, 7])
    for kind, (queries, keys) in {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}.items():
        shapes = {tuple(one.shape) for one in found[f"{kind}_attention"]}
        assert shapes == {(1, 8, queries, keys)}
        assert len(found[f"{kind}_attention"]) == 4
    assert torch.equal(found["cross_attention"][2][0, [5, 1, 0]], torch.tensor(CROSS[0]))
    assert torch.equal(found["encoder_attention"][3][0, [0, 7]], torch.tensor(ENCODER[0]))
    assert not found["cross_attention"][3].any()
    heads = every.to_bertviz()
    assert "include_heads" not in heads
    assert torch.equal(heads["decoder_attention"][2][0], torch.tensor(OWN[0]))
    assert not heads["encoder_attention"][3][0, 2].any()


@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_bertviz_draws_them(view: str):
    pytest.importorskip("bertviz")
    every = decoder_reply(attention=ENCODER, decoder_attention=OWN, cross_attention=CROSS)
    with pytest.warns(ResourceWarning, match=f"{view}.js"):  # BertViz leaves it open
        page = getattr(every, view)(html_action="return").data
    start = page.index("const params = ") + len("const params = ")
    params = json.JSONDecoder().raw_decode(page[start:])[0]
    kinds = {one["name"]: one for one in params["attention"]}
    assert [*kinds] == ["Encoder", "Decoder", "Cross"]
    assert (kinds["Cross"]["left_text"], kinds["Cross"]["right_text"]) == (["t"] * T, ["s"] * S)
    places = [0, 1, 2] if view == "head_view" else [2, 1, 0]  # heads 5, 1, 0 of 0, 1, 5, 7
    shown = np.array(kinds["Cross"]["attn"])[1]  # layer 2 of 1, 2, 3
    np.testing.assert_allclose(shown[places], CROSS[0], atol=1e-6)
    alone = decoder_reply(cross_attention=CROSS)
    assert alone.to_bertviz(view)["include_layers"] == [2]
    with pytest.warns(ResourceWarning, match=f"{view}.js"):
        assert "Cross" in getattr(alone, view)(html_action="return").data


SHARES = ("cls", "sep", "self", "previous", "next")


def labelled(size: int, separators: int = 1, **stats: float) -> Reply:
    """Return a reply of one head, layer 3 and head 7, with these statistics."""
    values = dict.fromkeys(("entropy", *SHARES), 0.0) | stats
    ids = [101, *[7] * (size - separators - 1), *[102] * separators]
    offsets = [(0, 1) if token == 7 else (0, 0) for token in ids]
    fields = text_fields(["t"] * size) | {"token_ids": ids, "offsets": offsets}
    tensors = {f"stats.{name}": np.full((1, 1), value) for name, value in values.items()}
    return Reply(**fields, layers=[3], heads=[7], tensors=tensors)


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (labelled(10, previous=0.5, cls=0.4), "previous token"),
        (labelled(10, next=0.51, cls=0.5), "next token"),
        (labelled(10, self=0.9), "itself"),
        (labelled(10, cls=0.5, self=0.5), "itself"),
        (labelled(10, cls=0.7, previous=0.5), "[CLS] sink"),
        (labelled(10, sep=0.6), "separator sink"),
        (labelled(10, sep=0.6, separators=3), "separator sink"),
        (labelled(10, sep=0.6, separators=4), None),  # even attention gives them 0.4
        (labelled(10, cls=0.49), None),
        (labelled(3, self=0.6), None),  # even attention gives it 1/3
        (labelled(3, self=0.67), "itself"),
        (labelled(10, entropy=0.81 * np.log(10)), "broad"),
        (labelled(10, entropy=0.79 * np.log(10)), None),
        (labelled(10, entropy=0.81 * np.log(10), cls=0.5), "[CLS] sink"),
    ],
)
def test_labels(found, label):
    assert found.label(3, 7) == label


def test_what_was_not_asked_for_is_told():
    with pytest.raises(HeadscopeError, match='include "stats"'):
        _ = Reply(**labelled(4).__dict__ | {"tensors": {}}).statistics
    with pytest.raises(HeadscopeError, match='include "weights"'):
        _ = labelled(4).weights
    with pytest.raises(ValueError, match="not in list"):
        labelled(4).label(0, 7)


TEXTS = ["The cat sat.", "", "a dog", ("What?", "The cat.")]


@pytest.mark.anyio
async def test_they_are_those_of_the_application(artifact: Artifact) -> None:
    """More texts than fit into a request, with a real engine; products add up to the scores."""
    async with (
        serving(artifact, OnnxEngine(artifact), max_client_batch_size=2) as plain,
        client_of(plain) as client,
    ):
        asked = {"layer": -1, "head": 0, "queries": [-1, 0], "backend": "onnx"}
        found = [
            *await client.head_scores(TEXTS[:3], **asked),
            *await client.head_scores(TEXTS[3:], **asked),
        ]
        for one, text in zip(found, TEXTS, strict=True):
            reply = (await plain.post("/attention/scores", json={"inputs": [text], **asked})).json()
            [result] = reply["results"]
            size = len(result["tokens"])
            assert (one.layer, one.head, one.scale) == (1, 0, reply["scale"])
            assert (one.queries, one.keys) == ([size - 1, 0], list(range(size)))
            assert (one.tokens, one.texts) == (
                result["tokens"],
                (text,) if isinstance(text, str) else text,
            )
            for name in ("query_vectors", "key_vectors", "scores", "weights"):
                values = getattr(one, name)
                assert values.dtype == np.float32
                np.testing.assert_allclose(values, result[name], rtol=1e-6)
            assert one.products.shape == (2, size, one.query_vectors.shape[1])
            np.testing.assert_allclose(one.products.sum(-1), one.scores, atol=1e-5)
            np.testing.assert_allclose(one.weights.sum(-1), 1, atol=1e-5)
        with pytest.raises(Refused, match="layer"):
            await client.head_scores("a", layer=99, head=0)


def content(**more):
    result = {
        "tokens": ["a", "b"],
        "token_ids": [1, 2],
        "segment_ids": [0, 0],
        "offsets": [[0, 1], [2, 3]],
        "truncated": False,
        "queries": [1],
        "query_vectors": [[1.0, -2.0]],
        "key_vectors": [[3.0, 1.0], [0.5, 0.0]],
        "scores": [[1.0, 2.0]],
        "weights": [[0.25, 0.75]],
    }
    head = {"model": "m", "backend": "onnx", "layer": 1, "head": 0, "scale": 0.5}
    return head | {"results": [result | more.pop("result", {})]} | more


def test_products_are_of_features():
    (one,) = read_head_scores(content(), ["a b"])
    assert isinstance(one, HeadScores)
    assert one.products.tolist() == [[[1.5, -1.0], [0.25, 0.0]]]
    (one,) = read_head_scores(content(scale=None), ["a b"])
    with pytest.raises(HeadscopeError, match="not sums of products"):
        _ = one.products


def test_what_is_asked_for_is_weighed():
    info = read_info(INFO)
    whole = head_scores("a", layer=0, head=1)
    assert whole.body == {"layer": 0, "head": 1}
    assert whole.weigh(100, info) > 2 * 100 * 100
    part = head_scores("a", layer=0, head=1, queries=[1], keys=[2, 3])
    assert part.weigh(100, info) < 1000
