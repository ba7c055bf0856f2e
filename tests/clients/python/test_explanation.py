"""Explanations of the client, from a reply in the service's own format."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import HeadscopeError, explanation
from headscope.explanation import Explanation, read_explanations
from headscope.reading import read_info
from tests.clients.python.fake import INFO
from tests.clients.python.page import Page

ONE, OTHER = "the grey cats", "a cat"
TOKENS = (
    (
        ["[CLS]", "the", "grey", "cat", "##s", "[SEP]"],
        [(0, 0), (0, 3), (4, 8), (9, 12), (12, 13), (0, 0)],
    ),
    (["[CLS]", "a", "cat", "[SEP]"], [(0, 0), (0, 1), (2, 5), (0, 0)]),
)
PAIRS = np.arange(24, dtype=np.float32).reshape(6, 4) / 100


def result(**more):
    texts = [
        {
            "tokens": tokens,
            "token_ids": list(range(len(tokens))),
            "offsets": offsets,
            "truncated": False,
        }
        for tokens, offsets in TOKENS
    ]
    return {"similarity": 0.5, "texts": texts, **more}


def content(*results):
    return {"model": "m", "backend": "onnx", "results": [*results], "usage": {}}


def explained(pair=(ONE, OTHER), **more) -> Explanation:
    (found,) = read_explanations(content(result(**more)), [list(pair)])
    return found


def test_the_largest_shares_of_words():
    read = explained(pairs=PAIRS.tolist(), completeness_error=1e-8, agreement={"pairs": None})
    shares = read.shares()
    assert shares.shape == (5, 4)
    assert shares[3].tolist() == pytest.approx((PAIRS[3] + PAIRS[4]).tolist())
    assert shares.sum() == pytest.approx(PAIRS.sum())
    best = [(pair.one.text, pair.other.text) for pair in read.top_pairs(2)]
    assert best == [("cats", "cat"), ("cats", "a")]
    assert read.top_pairs(1)[0].share == pytest.approx(0.14 + 0.18)
    assert len(read.top_pairs(99)) == 3 * 2
    with pytest.raises(HeadscopeError, match="no decomposition: request it"):
        read.top_pairs(method="decomposition")
    assert read.agreement == {"pairs": None}
    assert read.occlusion is None


def test_values_that_were_not_computed_are_nan():
    one = {"start": 4, "end": 13, "tokens": [2, 3, 4]}
    spans = [[one], [{"start": 0, "end": 1, "tokens": [1]}]]
    read = explained(
        occlusion=[[0.25], [None]],
        spans=spans,
        decomposition=None,
        decomposition_error=None,
        heads=[[0.25, None]],
        partial=True,
        computed={"occlusion": 1, "decomposition": 0, "heads": 1},
    )
    assert read.partial
    assert read.computed["occlusion"] == 1
    assert read.spans[0] == (explanation.OccludedSpan(4, 13, (2, 3, 4)),)
    assert read.occlusion[0].tolist() == [0.25]
    assert np.isnan(read.occlusion[1]).all()
    assert np.isnan(read.heads[0, 1])
    with pytest.raises(HeadscopeError, match="the deadline passed before the decomposition"):
        read.top_pairs(method="decomposition")


def test_pairs_alone_are_asked_for():
    with pytest.raises(TypeError, match=r"inputs\[0\] is not a pair of texts or pictures"):
        explanation.explain(["a text"])
    call = explanation.explain([(ONE, OTHER)], include=["occlusion"], spans="words", top=3)
    body = {"include": ["occlusion"], "spans": "words", "top": 3}
    assert (call.path, call.body) == ("/explain", body)
    info = read_info(INFO | {"layers": 6, "heads": 12})
    more = explanation.explain([(ONE, OTHER)], include=["occlusion", "heads"])
    assert more.weigh(100, info) >= call.weigh(100, info) + 72 * 10


def test_a_text_and_a_picture():
    """A class token and 1 × 2 patches; the share of a word and a patch."""
    found = result(
        decomposition=[[0.0, 0.1, 0.2]] * 6,
        occlusion=[[0.5], [0.25, 0.125]],
        spans=[
            [{"start": 4, "end": 13, "tokens": [2, 3, 4]}],
            [{"rows": [0, 1], "columns": [n, n + 1], "tokens": [n + 1]} for n in (0, 1)],
        ],
    )
    found["texts"][0]["tower"] = "text"
    found["texts"][1] = {
        "tokens": ["[CLS]", "0,0", "0,1"],
        "token_ids": [1, 0, 0],
        "offsets": [(0, 0)] * 3,
        "truncated": False,
        "grid": [1, 2],
        "size": [20, 10],
        "crop": [0.0, 0.0, 20.0, 10.0],
        "tower": "vision",
    }
    call = explanation.explain([(ONE, b"a file")])
    assert call.written(range(1)) == {"inputs": [[ONE, {"image": "YSBmaWxl"}]]}
    info = read_info(INFO)
    assert call.size(0, info)[1:4] == (len(ONE), 8, info.max_input_length + len(ONE) // 3 + 2)
    (read,) = explanation.read_explanations(content(found), call.inputs)
    text, picture = read.texts
    assert (text.tower, picture.tower, picture.grid, picture.size) == (
        *("text", "vision"),
        *((1, 2), (20, 10)),
    )
    assert picture.texts == ("a picture of 6 bytes",)
    assert read.spans[1][1] == explanation.OccludedBlock((0, 1), (1, 2), (2,))
    (best,) = read.top_pairs(1, "decomposition")
    assert (best.one.text, best.other.text) == ("cats", "0,1")
    assert best.share == pytest.approx(0.4)
    assert "0,1" in read._repr_html_()


OCCLUSION = [[0.5, 0.1, -0.2, 0.3, 0.1, 0.4], [0.5, 0.05, 0.1, 0.5]]
MATCHES = [
    {"query": 1, "document": 2, "score": 0.25},
    {"query": 1, "document": 1, "score": 0.5},
]


def spans(page: Page) -> dict[str, float]:
    """Return the opacity of each shade, by its tooltip."""
    return {
        found["title"]: float(found["style"].split(",")[3].partition(")")[0])
        for tag, found in page.tags
        if tag == "span"
    }


def test_what_each_token_is_worth():
    found = explained(pairs=PAIRS.tolist(), occlusion=OCCLUSION, matches=MATCHES)
    assert [len(losses) for losses in found.occlusion] == [6, 4]
    assert found.matches[0] == explanation.TokenMatch(1, 2, 0.25)
    values = found.token_values()
    assert [*values] == ["pairs", "occlusion", "matches"]
    np.testing.assert_allclose(values["pairs"][0], PAIRS.sum(axis=1))
    np.testing.assert_allclose(values["pairs"][1], PAIRS.sum(axis=0))
    assert values["matches"][0].tolist() == [0, 0.75, 0, 0, 0, 0]
    assert values["matches"][1].tolist() == [0, 0.5, 0.25, 0]
    assert repr(found) == (
        "Explanation('the grey cats', 'a cat', similarity=0.5000, pairs, occlusion, matches)"
    )


def test_shades_are_by_the_largest_token_of_both_texts_that_is_no_special_one():
    page = Page(explained(occlusion=OCCLUSION)._repr_html_())
    page.assert_inert()
    found = spans(page)
    expected = {"the": 0.1, "grey": -0.2, "cat": 0.3, "##s": 0.1, "a": 0.05}
    for token, value in expected.items():
        if token != "cat":  # a token of both texts
            assert found[f"{token}: {value:.3f}"] == pytest.approx(0.6 * abs(value) / 0.3, abs=1e-3)
    assert found["cat: 0.300"] == 0.6
    assert page.text[0] == "similarity 0.500 · m (onnx)"


def test_the_loss_without_a_word_is_of_its_tokens_and_the_rest_has_none():
    words = [
        [{"start": 0, "end": 3, "tokens": [1]}, {"start": 9, "end": 13, "tokens": [3, 4]}],
        [{"start": 2, "end": 5, "tokens": [2]}],
    ]
    found = explained(occlusion=[[None, 0.2], [0.1]], spans=words)
    one, other = found.token_values()["occlusion"]
    nan = np.nan
    np.testing.assert_array_equal(one, np.array([nan, nan, nan, 0.2, 0.2, nan], np.float32))
    np.testing.assert_array_equal(other, np.array([nan, nan, 0.1, nan], np.float32))
    page = Page(found._repr_html_())
    assert spans(page) == {
        "cat: 0.200": pytest.approx(0.6),
        "##s: 0.200": pytest.approx(0.6),
        "cat: 0.100": pytest.approx(0.3),
    }


@pytest.mark.parametrize("method", ["pairs", "decomposition"])
def test_pairs_of_words_stand_below(method):
    found = explained(**{method: PAIRS.tolist()})
    text = Page(found._repr_html_()).text
    start = text.index(f"share ({method})") + 1
    assert text[start : start + 3] == ["cats", "cat", f"{found.top_pairs(1, method)[0].share:.3f}"]


@pytest.mark.parametrize("more", [{}, {"pairs": PAIRS.tolist()}, {"heads": [[0.5, -0.5, 1]]}])
def test_a_text_that_is_markup_is_text(more):
    """Text outside tokens is shown as well: spaces, and the end of a truncated text."""
    pair = "<b>&x</b><script>alert(1)</script>", '<i onclick="x">'
    page = Page(explained(pair, **more)._repr_html_())
    page.assert_inert()
    whole = "".join(page.text)
    assert pair[0] in whole
    assert pair[1] in whole
    assert ("head 2" in page.text) == ("heads" in more)


def test_of_a_text_that_was_cut_the_start_of_the_rest_is_shown():
    found = explained((ONE, OTHER + " and more" * 1000), pairs=PAIRS.tolist())
    whole = "".join(Page(found._repr_html_()).text)
    assert "a cat and more and more" in whole
    assert len(whole) < 1000


def test_a_row_a_token():
    pytest.importorskip("pandas")
    table = explained(pairs=PAIRS.tolist(), occlusion=OCCLUSION).to_pandas()
    assert table["token"].tolist() == [*TOKENS[0][0], *TOKENS[1][0]]
    assert table["word"].tolist()[2:6] == ["grey", "cats", "cats", "[SEP]"]
    sums = table.groupby("text")["pairs"].sum()
    np.testing.assert_allclose(sums, [PAIRS.sum()] * 2, rtol=1e-6)
    np.testing.assert_allclose(table["occlusion"], np.concatenate(OCCLUSION), rtol=1e-6)
    assert table.loc[table["word"] == "cats", "end"].tolist() == [12, 13]
