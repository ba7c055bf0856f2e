"""Comparison of two builds, and the size of one, file by file."""

from __future__ import annotations

import os
from pathlib import Path

from deploy.image.measure import size
from deploy.image.reproduce import differing, digests


def tree(folder: Path, **files: str) -> Path:
    (folder / "etc").mkdir(parents=True)
    for name, text in files.items():
        (folder / "etc" / name).write_text(text)
    return folder


def test_what_differs_is_named(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", same="a", changed="b", gone="c")
    other = tree(tmp_path / "other", same="a", changed="d", new="e")
    (other / "etc" / "link").symlink_to("/etc/hostname")
    os.utime(other / "etc" / "same", (0, 0))
    found = differing(digests(one), digests(other))
    assert found == ["etc/changed", "etc/gone", "etc/new"]
    # FIPS 180-4's example: the digest of "abc"
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digests(tree(tmp_path / "third", abc="abc")) == {"etc/abc": abc}


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", one="12345", other="123")
    (root / "again").hardlink_to(root / "etc" / "one")
    (root / "link").symlink_to("etc/one")
    assert size(root) == 8
