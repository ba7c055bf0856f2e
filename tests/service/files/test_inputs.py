"""Files that are read, and the findings of a first reading."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.files.inputs import find_sources, survey
from service.files.options import FileOptions, UsageError
from service.files.rows import InputFailure
from service.system.distribution import install_command
from tests.service.files.conftest import Encode


def options(*inputs: Any, out: str = "out.npy", **fields: Any) -> FileOptions:
    return FileOptions(tuple(map(str, inputs)), Path(out), **fields)


def test_globs_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.jsonl", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text\n", encoding="utf-8")
    chosen = options(tmp_path / "c.jsonl", f"{tmp_path}/**/*.txt")
    found = find_sources(chosen, tmp_path / "spool")
    assert [source.path.relative_to(tmp_path).as_posix() for source in found] == [
        *("c.jsonl", "a.txt", "b.txt", "sub/d.txt")
    ]


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (["nothing.txt"], r"there is no file nothing\.txt"),
        (["no*.txt"], r"no file matches no\*\.txt"),
        ([__file__], r"its ending must be one of \.txt, \.jsonl, \.csv, \.parquet"),
        (["-", "-"], "standard input can be read once"),
    ],
)
def test_what_is_no_input(inputs: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        find_sources(options(*inputs), tmp_path)


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("service.system.distribution.is_installed", lambda _: False)
    with pytest.raises(ValueError, match="Parquet needs pyarrow") as refused:
        find_sources(options("a.txt", out="out.parquet"), tmp_path)
    assert install_command("files") in str(refused.value)


def test_a_survey(tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("one\ntwo\n", encoding="utf-8")
    chosen = options(source)
    found = survey(chosen, find_sources(chosen, tmp_path))
    content = hashlib.sha256(source.read_bytes()).hexdigest()
    assert (found.rows, found.identity) == (2, [{"name": str(source), "sha256": content}])
    assert [(place.position, place.row.text) for place in found.places()] == [
        (0, "one"),
        (1, "two"),
    ]
    found.check_unchanged()
    os.utime(source, (0, 0))
    with pytest.raises(InputFailure, match=r"a\.txt was changed while it was read"):
        found.check_unchanged()


def test_standard_input(encode: Encode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of the same lines."""
    lines = b"a cat\na dog\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    (tmp_path / "a.txt").write_bytes(lines)
    assert encode("-", tmp_path / "in.npy") == 0
    assert encode(tmp_path / "a.txt", tmp_path / "file.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "in.npy"), np.load(tmp_path / "file.npy"))
