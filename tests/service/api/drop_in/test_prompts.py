"""Texts without a prompt, and prompts for the kinds of input of other services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from model.artifact.sentence import SentenceConfig
from service.api.drop_in.prompts import prompt_for, without_prompt
from service.errors import Unprocessable


@pytest.mark.parametrize(("default", "name"), [(None, None), ("query", "")])
def test_a_default_prompt_is_switched_off_by_an_empty_name(
    default: str | None, name: str | None
) -> None:
    prompts = {"query": "query: "}
    sentence = SentenceConfig(max_length=9, prompts=prompts, default_prompt_name=default)
    assert without_prompt(cast("Any", SimpleNamespace(sentence=sentence))) == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (None, None),
        ("search_query", "query"),
        ("retrieval.query", "query"),
        ("search_document", "passage"),
        ("document", "passage"),
        ("clustering", None),
        ("mine", "mine"),
    ],
)
def test_a_kind_of_input_has_the_prompt_of_the_likest_name(
    kind: str | None, name: str | None
) -> None:
    prompts = dict.fromkeys(("mine", "passage", "query"), "p: ")
    inference = SimpleNamespace(sentence=SentenceConfig(max_length=9, prompts=prompts))
    assert prompt_for(cast("Any", inference), kind, "task") == name


def test_an_unknown_kind_of_input_is_refused() -> None:
    inference = SimpleNamespace(sentence=SentenceConfig(max_length=9, prompts={"mine": "m"}))
    with pytest.raises(Unprocessable, match=r"^task: unknown; .*text-matching, separation, mine$"):
        prompt_for(cast("Any", inference), "poetry", "task")
