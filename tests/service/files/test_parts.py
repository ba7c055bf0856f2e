"""A part is a safetensors file that exists whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from service.files.parts import Skipped, Spec, read_parts, write_part

ARRAYS = {
    "embedding": np.arange(6, dtype=np.float32).reshape(2, 3),
    "rows": np.array([4, 6], np.int64),
    "ids": np.array([7], np.int32),
}


def test_a_part_as_the_library_reads_it(tmp_path: Path) -> None:
    write_part(tmp_path, 4, 7, ARRAYS, [Skipped(5, "a.txt, line 6", "it is not UTF-8")])
    write_part(tmp_path, 0, 4, {}, [])
    (path,) = tmp_path.glob("*4.part")
    found = load_file(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    first, second = read_parts(tmp_path)
    assert (first.start, first.end, first.texts, first.specs) == (0, 4, 0, {})
    assert (second.start, second.end, second.texts) == (4, 7, 2)
    assert second.skips == 1
    assert second.skipped() == [Skipped(5, "a.txt, line 6", "it is not UTF-8")]
    assert second.specs["embedding"] == Spec("float32", (2, 3))
    np.testing.assert_array_equal(second.array("rows"), [4, 6])


@pytest.mark.parametrize("kept", [0, 7, 60, -1])
def test_what_is_damaged_is_not_there(tmp_path: Path, kept: int) -> None:
    write_part(tmp_path, 0, 2, ARRAYS, [])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:kept])
    assert list(read_parts(tmp_path)) == []
