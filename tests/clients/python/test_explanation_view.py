"""An explanation in a notebook, and as a table."""

from __future__ import annotations

import numpy as np
import pytest

from headscope.explanation import Explanation, read_explanations
from headscope.explanation_view import token_values
from tests.clients.python.page import Page
from tests.clients.python.test_explanation import ONE, OTHER, PAIRS, TOKENS, content, result

OCCLUSION = [[0.5, 0.1, -0.2, 0.3, 0.1, 0.4], [0.5, 0.05, 0.1, 0.5]]
MATCHES = [
    {"query": 1, "document": 2, "score": 0.25},
    {"query": 1, "document": 1, "score": 0.5},
]


def explanation(pair=(ONE, OTHER), **more) -> Explanation:
    (found,) = read_explanations(content(result(**more)), [list(pair)])
    return found


def spans(page: Page) -> dict[str, float]:
    """Return the opacity of each shade, by its tooltip."""
    return {
        found["title"]: float(found["style"].split(",")[3].partition(")")[0])
        for tag, found in page.tags
        if tag == "span"
    }


def test_what_each_token_is_worth():
    found = explanation(pairs=PAIRS.tolist(), occlusion=OCCLUSION, matches=MATCHES)
    values = token_values(found)
    assert [*values] == ["pairs", "occlusion", "matches"]
    np.testing.assert_allclose(values["pairs"][0], PAIRS.sum(axis=1))
    np.testing.assert_allclose(values["pairs"][1], PAIRS.sum(axis=0))
    assert values["matches"][0].tolist() == [0, 0.75, 0, 0, 0, 0]
    assert values["matches"][1].tolist() == [0, 0.5, 0.25, 0]
    assert repr(found) == (
        "Explanation('the grey cats', 'a cat', similarity=0.5000, pairs, occlusion, matches)"
    )


def test_shades_are_by_the_largest_token_of_both_texts_that_is_no_special_one():
    page = Page(explanation(occlusion=OCCLUSION)._repr_html_())
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
    found = explanation(occlusion=[[None, 0.2], [0.1]], spans=words)
    one, other = token_values(found)["occlusion"]
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
    found = explanation(**{method: PAIRS.tolist()})
    text = Page(found._repr_html_()).text
    start = text.index(f"share ({method})") + 1
    assert text[start : start + 3] == ["cats", "cat", f"{found.top_pairs(1, method)[0].share:.3f}"]


@pytest.mark.parametrize("more", [{}, {"pairs": PAIRS.tolist()}, {"heads": [[0.5, -0.5, 1]]}])
def test_a_text_that_is_markup_is_text(more):
    """Text outside tokens is shown as well: spaces, and the end of a truncated text."""
    pair = "<b>&x</b><script>alert(1)</script>", '<i onclick="x">'
    page = Page(explanation(pair, **more)._repr_html_())
    page.assert_inert()
    whole = "".join(page.text)
    assert pair[0] in whole
    assert pair[1] in whole
    assert ("head 2" in page.text) == ("heads" in more)


def test_of_a_text_that_was_cut_the_start_of_the_rest_is_shown():
    found = explanation((ONE, OTHER + " and more" * 1000), pairs=PAIRS.tolist())
    whole = "".join(Page(found._repr_html_()).text)
    assert "a cat and more and more" in whole
    assert len(whole) < 1000


def test_a_row_a_token():
    pytest.importorskip("pandas")
    table = explanation(pairs=PAIRS.tolist(), occlusion=OCCLUSION).to_pandas()
    assert table["token"].tolist() == [*TOKENS[0][0], *TOKENS[1][0]]
    assert table["word"].tolist()[2:6] == ["grey", "cats", "cats", "[SEP]"]
    sums = table.groupby("text")["pairs"].sum()
    np.testing.assert_allclose(sums, [PAIRS.sum()] * 2, rtol=1e-6)
    np.testing.assert_allclose(table["occlusion"], np.concatenate(OCCLUSION), rtol=1e-6)
    assert table.loc[table["word"] == "cats", "end"].tolist() == [12, 13]
