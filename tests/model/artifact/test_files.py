"""Identical files of artifacts are hard links, but never links to a damaged file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from model.artifact import manifest
from model.artifact.manifest import record_file, share_files


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "LEAST_SHARED_BYTES", 100)


def artifact_at(folder: Path, **contents: bytes) -> Any:
    """Return an artifact that only has files."""
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    records = {name: record_file(folder / name) for name in contents}
    listed = {name: record.model_dump() for name, record in records.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": listed}))
    manifest = SimpleNamespace(files=records)
    return SimpleNamespace(manifest=manifest, folder=folder, path=folder.joinpath)


def no_links(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def test_large_files_of_the_same_content_are_shared_under_any_name(tmp_path: Path) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 200, small=b"s", other=b"o" * 200)
    second = artifact_at(tmp_path / "second", data=b"w" * 200, small=b"s", own=b"p" * 200)
    (tmp_path / "no artifact").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("[]")
    share_files(second, sorted(each for each in tmp_path.iterdir() if each != second.folder))
    assert second.path("data").samefile(first.path("weights"))
    assert second.path("data").read_bytes() == b"w" * 200
    assert not second.path("small").samefile(first.path("small"))
    assert second.path("own").stat().st_nlink == 1
    assert sorted(path.name for path in second.folder.iterdir()) == [
        *("data", "manifest.json", "own", "small")
    ]


def test_a_damaged_file_is_not_shared(tmp_path: Path) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 200)
    first.path("weights").write_bytes(b"v" * 200)
    link = artifact_at(tmp_path / "link", weights=b"w" * 200)
    link.path("weights").rename(tmp_path / "outside")
    link.path("weights").symlink_to(tmp_path / "outside")
    second = artifact_at(tmp_path / "second", weights=b"w" * 200)
    share_files(second, [first.folder, link.folder])
    assert second.path("weights").read_bytes() == b"w" * 200
    assert second.path("weights").stat().st_nlink == 1


def test_a_file_system_without_links_keeps_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = artifact_at(tmp_path / "first", weights=b"w" * 200)
    second = artifact_at(tmp_path / "second", weights=b"w" * 200)
    monkeypatch.setattr(os, "link", no_links)
    share_files(second, [first.folder])
    assert second.path("weights").read_bytes() == b"w" * 200
    assert not second.path("weights").samefile(first.path("weights"))
    assert len([*second.folder.iterdir()]) == 2
