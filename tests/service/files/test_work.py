"""The folder of an unfinished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.files.options import UsageError
from service.files.work import WorkFolder


def test_a_run_is_taken_up(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        assert not work.begin({"a": 1, "b": [1, 2]})
        assert work.begin({"b": [1, 2], "a": 1})
        with pytest.raises(UsageError, match=r"with other a, c: go on as it was begun"):
            work.begin({"a": 2, "b": [1, 2], "c": 0})
        work.draft.write_bytes(b"content")
        work.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]
    assert work.out.read_bytes() == b"content"


def test_a_restart_throws_away(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.begin({"a": 1})
    with work.held(restart=True):
        assert not work.begin({"a": 2})


def test_what_did_not_begin_leaves_nothing(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "out.npy")
    with work.held(restart=False):
        work.discard_unbegun()
    assert list(tmp_path.iterdir()) == []
