"""Windows of long texts."""

from __future__ import annotations

import numpy as np
import pytest

from service.errors import InputTooLong
from service.inference.long_texts import windows_of
from tests.service.harness import tokenized


@pytest.mark.parametrize("own", [7, 8, 9, 20, 21, 200])
@pytest.mark.parametrize(("head", "tail"), [(1, 1), (0, 0), (3, 1), (1, 0)])
def test_each_token_is_taken_where_it_is_farthest_from_an_edge(
    own: int, head: int, tail: int
) -> None:
    text, limit = tokenized(head + own + tail), 8 + head + tail
    text.special_tokens_mask = bytes([1] * head + [0] * own + [1] * tail)
    windows = windows_of(text, limit, "inputs[0]")
    assert len(windows) == (1 if own <= 8 else 1 + -(-(own - 8) // 6))
    assert [len(window.tokens) for window in windows] == [min(limit, head + own + tail)] * len(
        windows
    )
    taken = {}
    for number, window in enumerate(windows):
        assert window.tokens[:head].tolist() == list(range(head))
        kept = range(window.kept.start, window.kept.stop)
        size = len(kept)
        assert window.tokens[window.first : window.first + size].tolist() == list(kept)
        taken |= dict.fromkeys(kept, number)
    assert list(taken) == list(range(head + own + tail))  # each once, in order
    for token in range(head, head + own):
        room = []
        for number, window in enumerate(windows):
            held = window.tokens[head : len(window.tokens) - tail]
            before = token - held[0] if number else np.inf
            after = held[-1] - token if number < len(windows) - 1 else np.inf
            room.append(min(before, after))
        assert room[taken[token]] == max(room)


def test_windows_are_linear_in_the_text() -> None:
    text = tokenized(100_002)
    text.special_tokens_mask = bytes([1] + [0] * 100_000 + [1])
    windows = windows_of(text, 256, "inputs[0]")
    assert sum(len(window.tokens) for window in windows) < 1.36 * 100_000


def test_a_prompt_that_fills_the_window_is_refused() -> None:
    text = tokenized(20)
    text.special_tokens_mask = bytes([1] * 7 + [0] * 12 + [1])
    assert len(windows_of(text, 12, "inputs[3]")) > 1
    with pytest.raises(InputTooLong, match=r"inputs\[3\]: .* leave 3 of 11 tokens of a window"):
        windows_of(text, 11, "inputs[3]")
