from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.artifact.mapped import SHARED, mapped_tensors


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


def test_tensors_of_a_file_beside_are_views_of_it(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    save_file({"whole": whole}, tmp_path / "weights.safetensors")
    shared = {
        "heads": ["weights.safetensors", "whole", [2, 2, 6], [0, 1, 2]],
        "columns": ["weights.safetensors", "whole", [4, 3, 2], [1, 0, 2]],
    }
    path = tmp_path / "heads.safetensors"
    save_file({"own": whole[0]}, path, {SHARED: json.dumps(shared)})
    found = mapped_tensors(path)
    np.testing.assert_array_equal(found["heads"], whole.reshape(2, 2, 6), strict=True)
    np.testing.assert_array_equal(found["columns"][1], whole[:, 2:4], strict=True)
    np.testing.assert_array_equal(found["own"], whole[0], strict=True)
    assert not any(each.flags.owndata or each.flags.writeable for each in found.values())
    shared["heads"][1] = "gone"
    save_file({"own": whole[0]}, path, {SHARED: json.dumps(shared)})
    with pytest.raises(KeyError, match="gone"):
        mapped_tensors(path)


def test_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    shared = json.dumps({"a": ["../weights.safetensors", "a", [1], [0]]})
    save_file({"own": np.ones(1, np.float32)}, tmp_path / "it", {SHARED: shared})
    with pytest.raises(ValueError, match=r"names .*, which is not beside it"):
        mapped_tensors(tmp_path / "it")
