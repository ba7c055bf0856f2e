"""Damaged pictures follow from their seeds."""

from __future__ import annotations

from testing.damaged_pictures import damaged, with_checksums
from testing.pictures import png


def test_files_follow_from_the_seed() -> None:
    files = [b"BM" + bytes(500), png(3, 1, 8, 0, b"\0abc")]
    some = [damaged(files, seed) for seed in range(50)]
    assert some == [damaged(files, seed) for seed in range(50)]
    assert len(set(some)) > 40
    assert not set(some) & set(files)


def test_changed_chunks_get_their_checksums() -> None:
    whole, changed = png(3, 1, 8, 0, b"\0abc"), png(4, 1, 8, 0, b"\0abc")
    broken = whole.replace(b"IHDR\0\0\0\3", b"IHDR\0\0\0\4")
    assert broken != changed == with_checksums(broken)
