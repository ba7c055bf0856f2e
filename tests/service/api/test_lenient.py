"""Requests whose unknown fields are ignored, and texts without a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from model.artifact.sentence import SentenceConfig
from service.api.lenient import LenientRequest, without_prompt


def test_unknown_fields_are_ignored_unless_there_are_very_many() -> None:
    assert LenientRequest.model_validate({"model": "a", "x": 1}) == LenientRequest(model="a")
    with pytest.raises(ValidationError, match="too many fields"):
        LenientRequest.model_validate({f"x{n}": n for n in range(65)})
    with pytest.raises(ValidationError, match="valid string"):
        LenientRequest.model_validate({"model": 1})


@pytest.mark.parametrize(("default", "name"), [(None, None), ("query", "")])
def test_a_default_prompt_is_switched_off_by_an_empty_name(
    default: str | None, name: str | None
) -> None:
    prompts = {"query": "query: "}
    sentence = SentenceConfig(max_length=9, prompts=prompts, default_prompt_name=default)
    assert without_prompt(cast("Any", SimpleNamespace(sentence=sentence))) == name
