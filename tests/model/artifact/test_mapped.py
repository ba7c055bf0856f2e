from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.artifact.mapped import mapped_tensors


def test_tensors_are_those_that_safetensors_reads(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    rng = np.random.default_rng(0)
    tensors = {"a": (3, 5), "empty": (0, 2), "scalar": (), "b.weight": (7,)}
    written = {name: rng.standard_normal(shape, np.float32) for name, shape in tensors.items()}
    save_file({name: np.asarray(each, np.float32) for name, each in written.items()}, path)
    found = mapped_tensors(path)
    assert found.keys() == written.keys()
    for name, each in load_file(path).items():
        np.testing.assert_array_equal(found[name], each, strict=True)
        assert not found[name].flags.writeable
        assert not found[name].flags.owndata


def test_a_file_of_other_numbers_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float16)}, tmp_path / "it")
    with pytest.raises(ValueError, match="holds a as F16"):
        mapped_tensors(tmp_path / "it")
    (tmp_path / "it").write_bytes(b"\2" + b"\0" * 7 + b"{]")
    with pytest.raises(ValueError, match="Expecting property name"):
        mapped_tensors(tmp_path / "it")
