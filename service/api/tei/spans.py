"""Labelled spans of texts, the reply of `POST /predict` for token classifiers.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from model.numerics.task_head import TaskConfig
from service.api.wire.reserved import CHARACTER_BYTES
from service.errors import Unprocessable
from service.inference.tasks.spans import Span
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.tokenized import TokenizedText

SPAN_BYTES = 96
"""Predicted bytes of a span in JSON, without its text and label."""
LOGIT_BYTES = 4
"""Bytes of a token's logit, held until the spans are computed."""


class LabelledSpan(BaseModel):
    """Label of the characters `start` to `end` of a text."""

    score: float
    label: str
    start: int
    end: int
    text: str


def single_texts(inputs: Sequence[Input]) -> list[str]:
    """Return the inputs as single texts."""
    texts = []
    for index, text in enumerate(inputs):
        if not isinstance(text, str):
            kind = "picture" if isinstance(text, Picture) else "pair"
            raise Unprocessable(
                f"inputs[{index}] is a {kind}; this model labels the tokens of single texts"
            )
        texts.append(text)
    return texts


def span_bytes(texts: Sequence[str], tokenized: Sequence[TokenizedText], task: TaskConfig) -> int:
    """Return the predicted bytes of the spans of all texts, and of their logits."""
    token_bytes = SPAN_BYTES + 2 * max(map(len, task.labels)) + LOGIT_BYTES * task.outputs
    size = 0
    for text, tokens in zip(texts, tokenized, strict=True):
        shown = sum(end - start for start, end in tokens.offsets)  # byte tokens share it
        size += token_bytes * len(tokens.input_ids) + CHARACTER_BYTES * max(shown, len(text))
    return size


def labelled(text: str, spans: Sequence[Span]) -> list[dict[str, object]]:
    """Return each span with its characters."""
    return [span._asdict() | {"text": text[span.start : span.end]} for span in spans]
