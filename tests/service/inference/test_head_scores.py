"""Limits on the scores of a head: memory of one text, and of all texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from service.errors import ReplyTooLarge
from service.inference import head_scores
from service.inference.head_scores import check_lengths, working_bytes


def prepared(*lengths: int) -> Any:
    """Return prepared texts with the given numbers of tokens."""
    return SimpleNamespace(texts=[SimpleNamespace(input_ids=np.zeros(n)) for n in lengths])


def test_one_text_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_scores, "LAYER_BYTES", 2 * 4 * 10 * 10)
    check_lengths(prepared(10, 3))
    with pytest.raises(ReplyTooLarge, match=r"inputs\[1\] has 11 tokens: .* 968 bytes"):
        check_lengths(prepared(10, 11))


def test_memory_is_that_of_all_states_and_of_the_longest_text() -> None:
    inference: Any = SimpleNamespace(config=SimpleNamespace(hidden_size=7))
    assert working_bytes(inference, prepared(5, 2)) == 4 * (7 * 7 + 2 * 25)
