"""Spans of /encode: start and end in code points, validated, and their vectors in replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.artifact.sentence import SentenceConfig
from service.errors import Unprocessable
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.text_spans import MOST_SPANS, check_pooling
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.truncation import Offset


def _spans(value: object) -> list[list[Offset]] | None:
    """Validate a list of [start, end] for each input, up to the first invalid item."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(of_text, list) for of_text in value):
        raise PydanticCustomError("spans", "a list of [start, end] for each input is needed")
    if sum(map(len, value)) > MOST_SPANS:
        raise PydanticCustomError("spans", f"at most {MOST_SPANS} spans are taken in a request")
    spans: list[list[Offset]] = []
    for index, of_text in enumerate(value):
        spans.append([])
        for place, span in enumerate(of_text):
            match span:
                case [start, end] if type(start) is type(end) is int:
                    spans[-1].append((start, end))
                case _:
                    raise PydanticCustomError(
                        "spans",
                        "spans[{index}][{place}] is not [start, end] of two integers",
                        {"index": index, "place": place},
                    )
    return spans


_SPAN = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_OF_TEXTS = {"type": "array", "items": {"type": "array", "items": _SPAN}}
Spans = Annotated[
    list[list[Offset]] | None,
    PlainValidator(_spans),
    WithJsonSchema({"anyOf": [_OF_TEXTS, {"type": "null"}]}),
]


def check_spans(
    spans: Sequence[Sequence[Offset]],
    inputs: Sequence[Input],
    options: EncodeOptions,
    sentence: SentenceConfig,
) -> None:
    """Raise if the spans do not fit the inputs or the pooling, before the texts are tokenised."""
    if len(spans) != len(inputs):
        raise Unprocessable(f"spans has {len(spans)} lists for {len(inputs)} inputs: send one each")
    check_texts(inputs)
    check_pooling(options.pooling or sentence.pooling)


def check_texts(inputs: Sequence[Input]) -> None:
    """Raise if an input is a pair or a picture."""
    for index, given in enumerate(inputs):
        if isinstance(given, Picture):
            raise Unprocessable(
                f"inputs[{index}] is a picture; spans and chunks are of texts: send it without"
            )
        if not isinstance(given, str):
            raise Unprocessable(
                f"inputs[{index}] is a pair; spans and chunks are of one text: send its texts as "
                "two inputs"
            )


def span_tensors(encodings: Sequence[TextEncoding]) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of all K spans of B texts in a binary reply; none without spans.

    `span_cu_seqlens` int32 `[B + 1]`: text i owns the rows `span_cu_seqlens[i:i + 2]` of `spans`
    int32 `[K, 2]` and of `span_vectors` `[K, D]`, or `[layers, K, D]`.
    """
    arrays = [encoding.arrays for encoding in encodings]
    vectors = [own["span_vectors"] for own in arrays if "span_vectors" in own]
    if not vectors:
        return {}
    places = [encoding.places for encoding in encodings if encoding.places is not None]
    return {
        "spans": np.concatenate(places),
        "span_cu_seqlens": np.cumsum([0, *map(len, places)]).astype(np.int32),
        "span_vectors": np.concatenate(vectors, axis=-2),
    }
