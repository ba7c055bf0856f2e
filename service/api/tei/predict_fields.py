"""Request and reply of `POST /predict`, in text-embeddings-inference's format.

Pictures, and labels that the request names, are additions to that format.

Notation: C labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator, BaseModel, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.native.texts import OBJECTS, no_duplicates
from service.api.tei.texts import TeiRequest
from service.api.wire.pictures import element
from service.api.wire.reserved import CHARACTER_BYTES
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.tasks.spans import Aggregation, Span
from service.inference.tasks.task_heads import TEMPLATE, required_task
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


PREDICTION_BYTES = 40
"""Predicted bytes of a label's score in JSON, without the label."""
_KINDS: tuple[TaskKind, ...] = ("sequence_classification", "token_classification")
_CLASSIFIER = "a classifier (…ForSequenceClassification or …ForTokenClassification)"
_FORMS = (
    "a text, a pair of texts, or a list of such lists is needed: [[text], [text, text], …]; or a "
    "picture, or a list of pictures: {image}"
)
MAX_LABELS = 4096
"""Maximum number of labels that a request can name."""


class PredictInputs(NamedTuple):
    """Texts, pairs and pictures, and whether the request sent a batch."""

    texts: list[Input]
    batch: bool


def _inputs(value: object) -> PredictInputs:
    """Parse a text, `[text]` or `[text, text]` as one input, and a list of lists as a batch.

    An object is a picture, and a list of objects a batch.
    """
    if isinstance(value, str):
        return PredictInputs([value], batch=False)
    if isinstance(value, dict):
        return PredictInputs([element(value, "inputs")], batch=False)
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("inputs", _FORMS)
    if isinstance(value[0], str):
        return PredictInputs([_sequence(0, value)], batch=False)
    return PredictInputs([_sequence(*item) for item in enumerate(value)], batch=True)


def _sequence(index: int, value: object) -> Input:
    match value:
        case dict():
            return element(value, f"inputs[{index}]")
        case Picture():
            return value
        case [str(text)]:
            return text
        case [str(first), str(second)]:
            return first, second
    raise PydanticCustomError("inputs", _FORMS)


_SEQUENCE = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}


class PredictRequest(TeiRequest):
    """Request body of `POST /predict`."""

    takes_files = True
    inputs: Annotated[
        PredictInputs,
        PlainValidator(_inputs),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string"},
                    _SEQUENCE,
                    *OBJECTS,
                    {
                        "type": "array",
                        "items": {"anyOf": [_SEQUENCE, *OBJECTS]},
                        "minItems": 1,
                    },
                ],
                "title": "Inputs",
                "examples": ["What is Deep Learning?"],
            }
        ),
    ] = Field(description="A text, a pair or a picture, or a batch of them.")
    raw_scores: bool = Field(
        False,
        description="Logits without softmax or sigmoid; for tokens only with aggregation none.",
    )
    aggregation: Aggregation | None = Field(
        None,
        description="For token classifiers: none labels each token; simple, the default, merges "
        "adjacent tokens with the same label; first, average and max label words by their first "
        "token, by the mean of their tokens or by their highest-scoring token.",
    )

    labels: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_LABELS),
            AfterValidator(no_duplicates),
        ]
        | None
    ) = Field(
        None,
        description="Labels to choose from, for pictures and a model with two towers such as CLIP.",
    )
    template: str | None = Field(
        None,
        description="Text of a label, with {} in its place, for `labels`; by default "
        f'"{TEMPLATE}"',
    )
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Return only the k best labels of each input."
    )

    def check_model(self, inference: Inference) -> TaskConfig:
        """Return the model's task head."""
        return required_task(inference.manifest, _KINDS, _CLASSIFIER)


class Prediction(BaseModel):
    """Label and its score."""

    score: float
    label: str


Predictions = list[Prediction] | list[LabelledSpan]


def predictions(logits: Floats, labels: Sequence[str], scores: Floats) -> list[dict[str, object]]:
    """Return each label with its score, the largest first; ties keep the order of the labels."""
    order = np.argsort(-logits, kind="stable")
    return [{"score": scores[label], "label": labels[label]} for label in order]
