"""Heat maps in a notebook: read back by an HTML parser, with names that contain markup."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Reply
from headscope.heat_map import MAX_TOKENS
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


def test_arguments_of_bertviz():
    torch = pytest.importorskip("torch")
    maps = np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2)
    found = reply(["a", "b"], attention=maps)
    of_heads, of_model = found.to_bertviz(), found.to_bertviz("model_view")
    assert of_heads.keys() | {"include_heads"} == of_model.keys()
    assert [tuple(one.shape) for one in of_heads["attention"]] == [(1, 2, 2, 2)] * 4
    assert [tuple(one.shape) for one in of_model["attention"]] == [(1, 8, 2, 2)] * 4
    assert torch.equal(of_heads["attention"][3][0], torch.tensor(maps[0]))
    assert torch.equal(of_model["attention"][1][0, [0, 7]], torch.tensor(maps[1]))
    assert not of_model["attention"][0].any()
    assert (of_model["include_layers"], of_model["include_heads"]) == ([3, 1], [0, 7])
