"""Jina's objects among the inputs of `/v1/embeddings`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from service.api.openai.inputs import EmbeddingInputs
from service.inference.tokenization.inputs import Picture, TokenIds

SCHEMA: TypeAdapter[Any] = TypeAdapter(EmbeddingInputs)
URL = "https://example.org/a.png"


def test_texts_ids_and_objects_may_be_mixed() -> None:
    given: list[Any] = [{"text": "a"}, "b", [1, 2], {"image": "QQ=="}, {"image": URL}]
    *others, file, address = SCHEMA.validate_python(given)
    assert others == ["a", "b", TokenIds((1, 2))]
    assert (file.source, file.at_address, file.field) == ("QQ==", False, "input[3].image")
    assert (address.source, address.at_address) == (URL, True)
    (picture,) = SCHEMA.validate_python({"image": "data:image/png;base64,QQ=="})
    assert isinstance(picture, Picture)


@pytest.mark.parametrize(
    "value", [{}, {"text": "a", "image": "QQ=="}, {"image": "QQ==", "x": 1}, {"text": 1}]
)
def test_an_object_has_one_text_or_picture(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"input\[1\] is not an object with one of `text` and"):
        SCHEMA.validate_python(["a", value])
