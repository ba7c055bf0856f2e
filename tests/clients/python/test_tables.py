"""Results as pandas tables, against the arrays that they are made of."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from headscope import Encoding, Encodings, HeadscopeError, HeatMap, Reply
from tests.clients.python.test_display import FIELDS, RESULTS, SCORES

TABLES = [one for one in RESULTS.values() if hasattr(one, "to_pandas") and one != ()]


@pytest.mark.parametrize("one", TABLES, ids=lambda one: type(one).__name__)
def test_without_pandas_the_error_says_what_to_install(one, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas: pip install pandas"):
        one.to_pandas()


def test_vectors_of_texts_and_tokens():
    pytest.importorskip("pandas")
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    one = Encoding(**FIELDS, tensors={"embeddings": rows, "pooled": rows[0]})
    table = one.to_pandas()
    assert table.index.tolist() == FIELDS["tokens"]
    np.testing.assert_array_equal(table.to_numpy(), rows)
    table = Encodings([one, one]).to_pandas()
    assert table.index.tolist() == [FIELDS["texts"][0]] * 2
    np.testing.assert_array_equal(table.to_numpy(), rows[[0, 0]])
    assert Encodings().to_pandas().empty


def test_vectors_of_several_layers():
    pytest.importorskip("pandas")
    rows = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    tensors = {"embeddings": rows, "pooled": rows[:, 0]}
    one = Encoding(**FIELDS, tensors=tensors, layers=[6, 0])
    table = one.to_pandas()
    assert table.shape == (8, 2)
    np.testing.assert_array_equal(table.loc[0].to_numpy(), rows[1])
    np.testing.assert_array_equal(Encodings([one]).to_pandas().loc[6].to_numpy(), rows[0, :1])


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
