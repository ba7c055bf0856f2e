"""Poolings as sets of rows, counted by hand; test_onnx_device.py compares their vectors."""

from __future__ import annotations

import numpy as np

from model.numerics.pooling import TextPooling
from model.runtimes.onnx_device import joined, sets_of, single_modes, tokens_of

ENDS = np.array([0, 4, 9])


def test_each_mode_is_a_set_of_rows_of_its_text() -> None:
    poolings = [
        TextPooling(0, 1, "cls"),
        TextPooling(1, 1, "last"),
        TextPooling(1, 1, "mean", 2, 8),
        TextPooling(0, 1, "max"),
        TextPooling(1, 1, "weightedmean", 1),
    ]
    sets = sets_of(poolings, ENDS)
    assert sets.first_row.tolist() == [0, 8, 6, 0, 5]
    assert sets.row_count.tolist() == [1, 1, 3, 4, 4]
    assert sets.maximum.tolist() == [0, 0, 0, 1, 0]
    assert sets.first_weight.tolist() == [0, 0, 0, 0, 2]
    assert sets.unit_features.tolist() == [0, 0, 8, 0, 0]


def test_several_modes_are_one_vector() -> None:
    pooling = TextPooling(1, 0, ("mean_sqrt_len_tokens", "cls"), 1, 3)
    assert [each.mode for each in single_modes(pooling)] == ["mean_sqrt_len_tokens", "cls"]
    mean, first = np.array([1.0, 2.0], np.float32), np.array([0.0, 5.0], np.float32)
    expected = np.array([2, 4, 0]) / np.sqrt(20)
    found = joined(pooling, [mean, first], ENDS)
    np.testing.assert_allclose(found, [*expected, 5], rtol=1e-6)


def test_rows_of_texts_come_one_text_after_another() -> None:
    assert tokens_of(np.array([4, 0]), np.array([6, 2])).tolist() == [4, 5, 0, 1]
