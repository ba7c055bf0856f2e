"""Options of /encode against the model."""

from __future__ import annotations

from typing import Any

import pytest

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from service.api.native.encode_request import EncodeRequest, encode_options
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions
from tests.service.harness import CONFIG

VECTORS = TextVectors(SentenceConfig(max_length=9), CONFIG.hidden_size, {})


def options(**body: Any) -> EncodeOptions:
    return encode_options(EncodeRequest.model_validate({"inputs": "a", **body}), CONFIG, VECTORS)


def test_layers_and_sizes_are_held_against_the_encoder() -> None:
    assert [options(layer=layer).layer for layer in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for layer in (3, -4):
        with pytest.raises(Unprocessable, match=f"layer {layer} is not in -3 … 2"):
            options(layer=layer)
    assert [options(dimensions=size).dimensions for size in (None, 1, 8)] == [None, 1, 8]
    with pytest.raises(Unprocessable, match="dimensions 9 is more than the model's 8"):
        options(dimensions=9)
