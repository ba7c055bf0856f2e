"""Words in messages about wrong values."""

from __future__ import annotations

import pytest

from service.system.words import likely, must_be_one_of


@pytest.mark.parametrize(
    ("wrong", "words", "says"),
    [
        ("inof", ["debug", "info"], ": did you mean info?"),
        ("INT8", ["int8", "fp32"], ": did you mean int8?"),
        ("gpu", ["cpu", "cuda"], ""),
        ("", ["cpu"], ""),
    ],
)
def test_the_likely_word(wrong: str, words: list[str], says: str) -> None:
    assert likely(wrong, words) == says


def test_the_accepted_words() -> None:
    assert must_be_one_of(["a", "b", "c"]) == "must be a, b or c"
