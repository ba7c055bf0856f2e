"""MurmurHash3 against values that mmh3 gives, of each number of bytes after the last block."""

from __future__ import annotations

import pytest

from service.inference.bm42.hashing import murmur3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 1009084850),
        ("ab", -1681926305),
        ("abc", -1277324294),
        ("abcd", 1139631978),
        ("cat", 1751422759),
        ("hello", 613153351),
        ("attention", 377896724),
        ("naïve", 992511445),
        ("注意", 1627940531),
        ("skies and mountains", -1578067379),
    ],
)
def test_hashes_are_mmh3s(text: str, expected: int) -> None:
    assert murmur3(text.encode()) == expected
