"""Heat maps and BertViz's views of a reply."""

from __future__ import annotations

import json

import numpy as np
import pytest

from headscope import Reply, Target
from headscope.display import MAX_TOKENS
from tests.clients.python.page import NASTY, Page


def reply(tokens: list[str], **tensors: np.ndarray) -> Reply:
    size = len(tokens)
    reported = {"token_ids": [0] * size, "segment_ids": [0] * size, "offsets": [(0, 1)] * size}
    return Reply("<m>", "onnx", ("",), tokens, *reported.values(), False, [3, 1], [0, 7], tensors)


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
        model="m",
        backend="onnx",
        layers=[3, 1] if "attention" in tensors else [],
        heads=[0, 7] if "attention" in tensors else [],
        texts=("",),
        tokens=["s"] * S,
        token_ids=[1] * S,
        segment_ids=[0] * S,
        offsets=[(0, 1)] * S,
        truncated=False,
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


@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_bertviz_draws_cross_attention_alone(view: str):
    pytest.importorskip("bertviz")
    alone = decoder_reply(cross_attention=CROSS)
    assert alone.to_bertviz(view)["include_layers"] == [2]
    with pytest.warns(ResourceWarning, match=f"{view}.js"):
        assert "Cross" in getattr(alone, view)(html_action="return").data
