"""Labelled spans of texts, as `POST /predict` answers for a classifier of tokens.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from model.artifact.task import TaskConfig
from service.api.drop_in.reserved import CHARACTER_BYTES
from service.errors import Unprocessable
from service.inference.tasks.spans import Span
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import TokenizedText

SPAN_BYTES = 96
"""Of a span in JSON, beside its text and the name of its label."""
LOGIT_BYTES = 4
"""Of a token's logit, until the spans are found."""


class LabelledSpan(BaseModel):
    """Characters `start` to `end` of a text, and their label."""

    score: float
    label: str
    start: int
    end: int
    text: str


def single_texts(inputs: Sequence[Input]) -> list[str]:
    """The inputs, none of which is a pair.

    Raises:
        Unprocessable: one is.

    """
    texts = []
    for index, text in enumerate(inputs):
        if not isinstance(text, str):
            raise Unprocessable(
                f"inputs[{index}] is a pair; this model labels the tokens of single texts"
            )
        texts.append(text)
    return texts


def span_bytes(texts: Sequence[str], tokenized: Sequence[TokenizedText], task: TaskConfig) -> int:
    """Bytes predicted of the spans of all texts and of the logits that they come from."""
    each = SPAN_BYTES + 2 * max(map(len, task.labels)) + LOGIT_BYTES * task.outputs
    size = 0
    for text, tokens in zip(texts, tokenized, strict=True):
        shown = sum(end - start for start, end in tokens.offsets)  # bytes of one may share one
        size += each * len(tokens.input_ids) + CHARACTER_BYTES * max(shown, len(text))
    return size


def labelled(text: str, found: Sequence[Span]) -> list[dict[str, Any]]:
    """Each span with its characters."""
    return [span._asdict() | {"text": text[span.start : span.end]} for span in found]
