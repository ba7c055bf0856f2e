"""Targets as a request names them, and their fields in replies."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.native.texts import (
    Header,
    Targets,
    metadata,
    text_bytes,
    text_fields,
    text_tensors,
    usage,
)
from tests.service.harness import tokenized

ADAPTER: TypeAdapter[Any] = TypeAdapter(Targets)
TEXTS = [tokenized(3), tokenized(1, 2)]
HEADER = Header("m", "onnx", {"layers": [0]})


@pytest.mark.parametrize(
    ("given", "found"), [(None, None), ("a", ["a"]), ("", [""]), (["a", ""], ["a", ""])]
)
def test_a_text_is_a_list_of_one(given: Any, found: Any) -> None:
    assert ADAPTER.validate_python(given) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "a text, or a list of texts, is needed"),
        (1, "a text, or a list"),
        ({"0": "a"}, "a text, or a list"),
        (["a", 1], r"targets\[1\] is no text"),
        ([["a", "b"]], r"targets\[0\] is no text"),
    ],
)
def test_what_is_no_target(given: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ADAPTER.validate_python(given)


def test_without_targets_nothing_is_added() -> None:
    assert usage(TEXTS) == {"inputs": 2, "tokens": 4}
    names = [*text_fields(TEXTS[1]), *text_tensors(TEXTS), *metadata(HEADER, TEXTS)]
    assert not [name for name in names if name.startswith("target")]


def test_targets_have_lists_of_their_own() -> None:
    targets = [tokenized(1, 5), tokenized(4, 6)]
    texts = [
        dataclasses.replace(text, target=target)
        for text, target in zip(TEXTS, targets, strict=True)
    ]
    assert usage(texts) == {"inputs": 2, "tokens": 9}
    assert text_bytes(texts) == text_bytes(TEXTS) + text_bytes(targets)
    fields = text_fields(texts[1])
    assert fields["tokens"] == TEXTS[1].tokens
    assert (fields["target_tokens"], fields["target_truncated"]) == (targets[1].tokens, False)
    tensors = text_tensors(texts)
    assert tensors["target_cu_seqlens"].tolist() == [0, 1, 5]
    ids = [token for target in targets for token in target.input_ids.tolist()]
    assert tensors["target_token_ids"].tolist() == ids
    assert tensors["target_truncated"].tolist() == [1, 0]
    lists = {
        name: json.loads(value)
        for name, value in metadata(HEADER, texts).items()
        if name not in ("model", "backend")
    }
    assert lists["usage"]["tokens"] == 9
    assert lists["target_tokens"] == [target.tokens for target in targets]
    assert lists["target_offsets"][0] == [[0, 1]]
