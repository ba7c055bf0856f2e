"""Fields of all of vLLM's requests."""

from __future__ import annotations

import pytest

from service.api.vllm.fields import VllmRequest
from service.errors import Unprocessable


def test_texts_are_cut_only_when_asked() -> None:
    assert not VllmRequest().options("{}").truncate
    left = VllmRequest(truncate_prompt_tokens=-1, truncation_side="left").options("{}")
    assert (left.truncate, left.direction, left.max_tokens) == (True, "left", None)
    assert VllmRequest(truncate_prompt_tokens=5).options("{}").direction == "right"


@pytest.mark.parametrize(
    ("asked", "refused"), [(None, 0), (-1, 0), (1, 0), (9, 0), (0, 1), (10, 1)]
)
def test_lengths_are_those_of_the_model(asked: int | None, refused: bool) -> None:
    request = VllmRequest(truncate_prompt_tokens=asked)
    if not refused:
        request.check_length(9)
        return
    with pytest.raises(Unprocessable, match=f"truncate_prompt_tokens: {asked} is not in 1 … 9"):
        request.check_length(9)
