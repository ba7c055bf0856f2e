"""Table at the end of a run, against numpy's mean over the texts of all parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.files.fields import ROWS
from service.files.importance import importance_table
from service.files.parts import read_parts, write_part


def test_each_text_counts_once(tmp_path: Path) -> None:
    """This holds in every part; parts without texts are left out."""
    values = np.random.default_rng(0).random((5, 3, 2), np.float32)
    for start, end in ((0, 4), (4, 5)):
        content = {"importance": values[start:end], ROWS: np.arange(start, end)}
        write_part(tmp_path, start, end, content, [])
    write_part(tmp_path, 5, 6, {}, [])
    title, heads, *rows = importance_table([*read_parts(tmp_path)]).splitlines()
    assert title == "mean of 1 - cosine without each head, over 5 texts"
    assert heads.split() == ["layer", "\\", "head", "0", "1"]
    for layer, (row, wanted) in enumerate(zip(rows, values.mean(axis=0), strict=True)):
        number, *found = row.split()
        assert int(number) == layer
        np.testing.assert_allclose([float(value) for value in found], wanted, atol=5e-6)
