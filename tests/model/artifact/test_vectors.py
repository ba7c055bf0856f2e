"""Vector pipelines, and mapped tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model.artifact.mapped import SHARED, mapped_tensors
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION, TextVectors
from model.numerics.pooling import PoolingModes
from model.numerics.vector_modules import Dense

X = [np.arange(1, 5, dtype=np.float32), np.array([0, -3, 4, 0], np.float32)]
DOUBLE = Dense(in_features=4, out_features=6, bias=False, activation="Identity")
WEIGHT = {"0.linear.weight": 2 * np.eye(6, 4, dtype=np.float32)}


def vectors(**fields: Any) -> TextVectors:
    tensors = WEIGHT if fields.get("modules") else {}
    return TextVectors(SentenceConfig(max_length=9, **fields), 4, tensors)


def unit(vector: Any) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


def test_without_modules_the_pooled_vectors_are_what_they_were() -> None:
    found = vectors().finish(X)
    assert all(np.shares_memory(one, other) for one, other in zip(found, X, strict=True))
    assert vectors().finish([]) == []


def test_modules_apply_to_all_vectors_at_once() -> None:
    found = vectors(modules=(DOUBLE,)).finish(X)
    assert [one.tolist() for one in found] == [[2, 4, 6, 8, 0, 0], [0, -6, 8, 0, 0, 0]]


def test_unit_vectors_are_of_the_checkpoints_own_pooling_and_modules() -> None:
    ours = vectors(pooling="max", modules=(DOUBLE,), truncate_dim=2)
    assert ours.pooling == "max"
    expected = unit(np.array([2, 4, 8, 8, 0, 0]))
    np.testing.assert_allclose(ours.unit(np.stack(X)), expected, rtol=1e-6)
    (found,) = ours.units([np.array([1, 2, 4, 4], np.float32)])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("asked", [None, "mean", "cls"])
def test_a_callers_pooling_goes_through_modules_that_it_fits(asked: PoolingModes | None) -> None:
    ours = vectors(pooling="mean", modules=(DOUBLE,))
    assert ours.size(asked) == len(ours.finish(X, asked)[0]) == 6


def test_a_callers_pooling_that_fits_no_module_is_given_as_it_is() -> None:
    wide = Dense(in_features=8, out_features=3)
    tensors = {"0.linear.weight": np.ones((3, 8), np.float32), "0.linear.bias": np.ones(3)}
    sentence = SentenceConfig(max_length=9, pooling=("mean", "cls"), modules=(wide,))
    ours = TextVectors(sentence, 4, tensors)
    assert (ours.size(), ours.size("max")) == (3, 4)
    assert ours.finish(X, "max")[1].tolist() == X[1].tolist()


@pytest.mark.parametrize(
    ("fields", "asked", "expected"),
    [
        ({}, {"dimensions": 2}, X[0][:2]),
        ({}, {"dimensions": 2, "normalize": True}, unit(X[0][:2])),
        ({"normalize": True}, {}, unit(X[0])),
        ({"normalize": True}, {"normalize": False}, X[0]),
        ({"normalize": True}, {"dimensions": 2}, unit(X[0][:2])),
        ({"normalize": True, "truncate_dim": 2}, {}, unit(X[0])[:2]),
        ({"normalize": True, "truncate_dim": 2}, {"normalize": True}, unit(X[0][:2])),
        ({"normalize": True, "truncate_dim": 2}, {"normalize": False}, X[0][:2]),
        ({"normalize": True, "truncate_dim": 2}, {"dimensions": 3}, unit(X[0][:3])),
        ({"truncate_dim": 3}, {}, X[0][:3]),
        ({"truncate_dim": 99}, {}, X[0]),
    ],
    ids=str,
)
def test_who_cuts_decides_what_is_a_unit_vector(
    fields: dict[str, Any], asked: dict[str, Any], expected: np.ndarray
) -> None:
    ours = vectors(**fields)
    np.testing.assert_allclose(ours.finish(X, **asked)[0], expected, rtol=1e-6)
    assert ours.kept(dimensions=asked.get("dimensions")) == len(expected)


def test_ranges_are_of_the_requested_vectors_of_the_calibration_texts() -> None:
    sentence = SentenceConfig(max_length=9, normalize=True)
    ours = TextVectors(sentence, 4, {CALIBRATION: np.stack(X)})
    wanted = np.stack([unit(vector[:2]) for vector in X])
    found = ours.ranges(dimensions=2)
    np.testing.assert_allclose(found, [wanted.min(axis=0), wanted.max(axis=0)], rtol=1e-6)
    assert ours.ranges(normalize=False).tolist() == [[0, -3, 3, 0], [1, 2, 4, 4]]
    assert vectors().ranges() is None


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
