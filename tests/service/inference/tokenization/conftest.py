"""Fixtures of tests of tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

import pytest

from service.inference.tokenization import file_tokenizer, truncation


@pytest.fixture
def limit_characters(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how many characters are tokenised to find where a text is cut.

    Tokenizers of other tests, which are shared by their file, keep the limit they began with; the
    test gets its own.
    """

    def limit(most: int) -> None:
        monkeypatch.setattr(truncation, "MOST_CHARACTERS", most)
        monkeypatch.setattr(file_tokenizer, "_tokenizers", WeakValueDictionary())

    return limit
