"""References between files, hashes, records of verifications, and tolerances."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from model.artifact import integrity
from model.artifact.integrity import check_references
from model.artifact.manifest import Artifact, measured, recorded_tolerances
from model.artifact.verification import (
    UNVERIFIED,
    Verdict,
    VerificationRecord,
    next_power_of_ten,
    verdict_lines,
)
from model.errors import ArtifactError
from model.numerics.comparison import Tolerance, tolerances_of


@pytest.mark.parametrize(
    ("file", "allowed", "says"),
    [
        ("weights.safetensors", ["weights.safetensors"], None),
        ("weights.safetensors", [], "has tensors in another file than its own"),
        ("other", ["weights.safetensors"], "has tensors in another file than weights.safetensors"),
        ("../weights.safetensors", ["../weights.safetensors"], "cannot be read"),
        (None, ["weights.safetensors"], "cannot be read"),
    ],
)
def test_tensors_are_shared_with_these_files_alone(
    tmp_path: Path, file: str | None, allowed: list[str], says: str | None
) -> None:
    path = tmp_path / "heads.safetensors"
    shared = {"a": [file, "b", [1], [0]]} if file else []
    save_file({"c": np.ones(2, np.float32)}, path, {"shared": json.dumps(shared)})
    if says is None:
        check_references(path, allowed)
        return
    with pytest.raises(ArtifactError, match=says):
        check_references(path, allowed)


def test_a_file_is_read_once_while_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "file", list[Path]()
    monkeypatch.setattr(integrity, "sha256_of", lambda file: read.append(file) or len(read))
    path.write_bytes(b"abc")
    assert [integrity.sha256_once(path) for _ in range(3)] == [1, 1, 1]
    path.write_bytes(b"abcd")
    assert integrity.sha256_once(path) == 2


def test_a_large_file_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_READ_BYTES", 4)
    for content in (b"", b"abc", b"abcd", b"abcdefghi"):
        (tmp_path / "file").write_bytes(content)
        assert integrity.sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


PASSED, FAILED = Verdict(passed=True), Verdict(passed=False, failed="hidden state 6")
LESS = Verdict(passed=False, failed="least cosine 0.8")


def record(vectors: Verdict, heads: Verdict) -> VerificationRecord:
    return UNVERIFIED.model_copy(update={"vectors": vectors, "heads": heads})


@pytest.mark.parametrize(
    ("vectors", "heads", "passed", "failed", "lines"),
    [
        (PASSED, PASSED, True, None, ["verified"]),
        (FAILED, FAILED, False, "hidden state 6", ["verification FAILED: hidden state 6"]),
        (
            PASSED,
            FAILED,
            True,
            "heads: hidden state 6",
            ["vectors: verified", "heads: verification FAILED: hidden state 6"],
        ),
        (
            LESS,
            FAILED,
            False,
            "vectors: least cosine 0.8; heads: hidden state 6",
            [
                "vectors: verification FAILED: least cosine 0.8",
                "heads: verification FAILED: hidden state 6",
            ],
        ),
    ],
)
def test_a_record_that_failed_one_use_passed_the_other(
    vectors: Verdict, heads: Verdict, passed: bool, failed: str | None, lines: list[str]
) -> None:
    found = record(vectors, heads)
    assert (found.passed, found.failed) == (passed, failed)
    assert (found.verdict("vectors"), found.verdict("heads")) == (vectors, heads)
    assert verdict_lines(found) == lines


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, 0.0),
        (math.inf, None),
        (3e-7, 1e-6),
        (1.0001e-6, 1e-5),
        (9.99e-6, 1e-5),
        (0.5, 1.0),
        (1.5, 10.0),
        (99.0, 100.0),
        *((float(f"1e{power}"), float(f"1e{power}")) for power in range(-30, 31)),
    ],
)
def test_next_power_of_ten(value: float, expected: float) -> None:
    assert next_power_of_ten(value) == expected


def test_only_what_was_widened_is_the_manifests(tiny_artifact: Artifact) -> None:
    manifest = tiny_artifact.manifest
    usual = tolerances_of("fp32", *manifest.depths)
    assert measured(manifest) == {}
    assert recorded_tolerances(manifest) == usual
    wide = {"atol": 3e-4, "rtol": 0.0, "cosine_at_least": 0.99999}
    narrow = {"atol": 1e-9, "rtol": 0.0, "cosine_at_least": 1.0}
    record = manifest.verification.model_copy(
        update={"tolerances": {"attention": wide, "hidden": narrow, "pooled": narrow}}
    )
    changed = manifest.model_copy(update={"verification": record})
    assert measured(changed) == {"attention": Tolerance(**wide)}
    assert recorded_tolerances(changed) == {**usual, "attention": Tolerance(**wide)}
