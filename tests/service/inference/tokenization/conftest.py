"""Fixtures of tests of tokenizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.inference.tokenization import truncation


@pytest.fixture
def limit_characters(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that sets how many characters are tokenised to find where a text is cut."""

    def limit(most: int) -> None:
        monkeypatch.setattr(truncation, "MOST_CHARACTERS", most)

    return limit
