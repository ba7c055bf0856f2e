"""Results in a prompt, in a notebook and as pandas tables."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from headscope import (
    Difference,
    Encoding,
    Encodings,
    HeadscopeError,
    HeadScores,
    HeatMap,
    Info,
    Rank,
    Reply,
    SparseVector,
    Target,
    Tokens,
    Verification,
)
from headscope.display import STRONGEST, colour
from tests.clients.python.fake import INFO, text_fields
from tests.clients.python.page import NASTY, Page

LONG = "a long text " * 50
FIELDS: dict[str, Any] = text_fields(NASTY, [LONG]) | {"truncated": True}
VECTORS = {"embeddings": np.zeros((4, 384), np.float32), "pooled": np.zeros(384, np.float32)}
ENCODING = Encoding(**FIELDS, tensors=VECTORS)
MAPS = {"attention": np.ones((2, 3, 4, 4), np.float32), "stats.entropy": np.ones((2, 3))}
MAPS["stats.self"] = MAPS["stats.entropy"]
SCORES = HeadScores(
    **FIELDS,
    layer=2,
    head=8,
    scale=0.5,
    queries=[0, 1],
    keys=[3],
    query_vectors=np.ones((2, 8), np.float32),
    key_vectors=np.ones((1, 8), np.float32),
    scores=np.ones((2, 1), np.float32),
    weights=np.ones((2, 1), np.float32),
)
START = f"{LONG[:39]}…"
CLOSE = Difference(2e-6, 1.0, 1e-4, 1e-4, passed=True)
FAR = Difference(3e-6, 1.0, 1e-4, 1e-4, passed=True, layer=1)
RESULTS = {
    f"Encoding({START!r}, 4 tokens, truncated, embeddings [4, 384], pooled [384])": ENCODING,
    "Encodings(2 texts, 8 tokens, pooled [2, 384])": Encodings([ENCODING] * 2),
    "Encodings(0 texts, 0 tokens)": Encodings(),
    f"Reply({START!r}, 4 tokens, truncated, attention [2, 3, 4, 4], stats)": Reply(
        **FIELDS, layers=[3, 1], heads=[0, 7, 8], tensors=MAPS
    ),
    f"HeadScores({START!r}, 4 tokens, truncated, layer 2, head 8, scores [2, 1])": SCORES,
    f"Target({START!r}, 4 tokens)": Target(LONG, NASTY, [1] * 4, [(0, 1)] * 4, truncated=False),
    f"Rank(index=3, score=0.1235, text={START!r})": Rank(3, 0.123456, LONG),
    "SparseVector(2 words, largest 0.750 at 9)": SparseVector(
        np.array([7, 9]), np.array([0.5, 0.75], np.float32)
    ),
    "SparseVector(0 words)": SparseVector(np.array([], np.int64), np.array([], np.float32)),
    "HeatMap('layer 1', weights [2, 2])": HeatMap("layer 1", ("a", "b"), np.ones((2, 2))),
    "Info('m', layers 2, heads 2, hidden_size 4, onnx on CPU in fp32, working)": Info(
        **INFO, fields=INFO
    ),
    "Verification(passed, onnx against torch, 3 inputs, "
    "hidden ≤ 3.0e-06, attention ≤ 2.0e-06, pooled ≤ 2.0e-06)": Verification(
        True, "torch", "onnx", 3, (CLOSE, FAR), (CLOSE,), CLOSE, None
    ),
    f"Tokens({START!r}, 2 tokens)": Tokens(
        LONG, NASTY[:2], [1, 2], [(0, 0), (0, 1)], [True, False]
    ),
}


@pytest.mark.parametrize("line", RESULTS)
def test_a_result_is_a_line(line):
    assert repr(RESULTS[line]) == line


@pytest.mark.parametrize("line", RESULTS)
def test_a_notebook_shows_it_and_runs_nothing_of_it(line):
    page = Page(RESULTS[line]._repr_html_())
    page.assert_inert()
    assert "".join(page.text).strip()


def test_texts_and_tokens_are_shown_as_they_are():
    encodings = Encodings([Encoding(**{**FIELDS, "texts": (text,)}, tensors={}) for text in NASTY])
    assert Page(encodings._repr_html_()).text[2::2] == NASTY
    assert NASTY[0] in Page(ENCODING._repr_html_()).text


def test_of_many_texts_the_first_are_shown():
    page = Page(Encodings([ENCODING] * 12)._repr_html_())
    assert "the first 10 of 12 texts" in page.text
    assert len(page.cells()) == 2 * 10


@pytest.mark.parametrize("value", [1.0, -1.0, 2.0])
@pytest.mark.parametrize(("paper", "ink"), [(255, 0), (17, 212)])
def test_text_on_the_strongest_shade_is_readable(value, paper, ink):
    """The contrast is at least 4.5, as WCAG 2.2 requires (1.4.3), by its own formula."""
    *shade, alpha = map(float, colour(value).removeprefix("rgba(").rstrip(")").split(","))
    assert alpha == STRONGEST

    def luminance(channels):
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (channel / 255 for channel in channels)
        ]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    behind = luminance([alpha * channel + (1 - alpha) * paper for channel in shade])
    light, dark = sorted([behind, luminance([ink] * 3)], reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


TABLES = [one for one in RESULTS.values() if hasattr(one, "to_pandas") and one != ()]


@pytest.mark.parametrize("one", TABLES, ids=lambda one: type(one).__name__)
def test_without_pandas_the_error_says_what_to_install(one, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas: pip install pandas"):
        one.to_pandas()


def test_vectors_of_texts_and_tokens_by_layer():
    pytest.importorskip("pandas")
    rows = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    one = Encoding(**FIELDS, tensors={"embeddings": rows[0], "pooled": rows[0, 0]})
    table = one.to_pandas()
    assert table.index.tolist() == FIELDS["tokens"]
    np.testing.assert_array_equal(table.to_numpy(), rows[0])
    table = Encodings([one, one]).to_pandas()
    assert table.index.tolist() == [FIELDS["texts"][0]] * 2
    np.testing.assert_array_equal(table.to_numpy(), rows[0, [0, 0]])
    assert Encodings().to_pandas().empty
    tensors = {"embeddings": rows, "pooled": rows[:, 0]}
    several = Encoding(**FIELDS, tensors=tensors, layers=[6, 0])
    np.testing.assert_array_equal(several.to_pandas().loc[0].to_numpy(), rows[1])
    table = Encodings([several]).to_pandas()
    np.testing.assert_array_equal(table.loc[6].to_numpy(), rows[0, :1])


def test_maps_and_scores_have_their_tokens():
    pytest.importorskip("pandas")
    maps = np.random.default_rng(0).random((2, 3, 4, 4)).astype(np.float32)
    reply = Reply(**FIELDS, layers=[3, 1], heads=[0, 7, 8], tensors={"attention": maps})
    table = reply.to_pandas(1, 7)
    assert table.index.tolist() == table.columns.tolist() == FIELDS["tokens"]
    np.testing.assert_array_equal(table.to_numpy(), maps[1, 1])
    np.testing.assert_allclose(reply.to_pandas().to_numpy(), maps.mean(axis=(0, 1)), rtol=1e-6)
    assert SCORES.to_pandas().columns.tolist() == [FIELDS["tokens"][3]]
    assert SCORES.to_pandas("weights").shape == (2, 1)
    with pytest.raises(HeadscopeError, match="the map has no weights"):
        HeatMap("", ("a",), None).to_pandas()


def test_differences_and_tokens_are_rows():
    pytest.importorskip("pandas")
    tables = {type(one).__name__: one.to_pandas() for one in TABLES if type(one) is not Encodings}
    assert tables["Verification"]["tensor"].tolist() == ["hidden", "hidden", "attention", "pooled"]
    assert tables["Verification"]["max_abs_diff"].max() == 3e-6
    assert tables["Tokens"]["special"].tolist() == [True, False]
    assert tables["SparseVector"].empty
