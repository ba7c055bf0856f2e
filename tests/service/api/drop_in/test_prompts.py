"""Texts without a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from model.artifact.sentence import SentenceConfig
from service.api.drop_in.prompts import without_prompt


@pytest.mark.parametrize(("default", "name"), [(None, None), ("query", "")])
def test_a_default_prompt_is_switched_off_by_an_empty_name(
    default: str | None, name: str | None
) -> None:
    prompts = {"query": "query: "}
    sentence = SentenceConfig(max_length=9, prompts=prompts, default_prompt_name=default)
    assert without_prompt(cast("Any", SimpleNamespace(sentence=sentence))) == name
