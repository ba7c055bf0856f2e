"""Caches below a home folder that does not exist, or that the user may not write to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model.errors import SourceError
from model.sources.home import check_home, expanded, make_cache


def test_a_home_is_expanded_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert expanded("~/.cache") == Path("/home/somebody/.cache")
    assert expanded("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")
    assert expanded("/a/~") == Path("/a/~")


def test_a_cache_without_a_home_is_refused_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for check in (check_home, make_cache):
        with pytest.raises(SourceError, match="does not have: set HF_HOME to a folder"):
            check(Path("~nobody-of-this-name/.cache"), "HF_HOME")
    assert [*tmp_path.iterdir()] == []


def test_a_cache_that_cannot_be_written_is_refused_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"file/cache cannot .*\(Not a directory\): set HF_HOME"):
        make_cache(tmp_path / "file" / "cache", "HF_HOME")
    make_cache(tmp_path / "a" / "cache", "HF_HOME")
    assert (tmp_path / "a" / "cache").is_dir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(SourceError, match="Permission denied"):
        make_cache(tmp_path / "a" / "cache", "HF_HOME")
