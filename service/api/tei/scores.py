"""`POST /predict`, `/rerank`, `/similarity` and `/`: labels and relevance, in TEI's format.

`/rerank` itself is in `service.api.dialects`.

Notation: S tokens of one text, C labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.numerics.task_head import TaskConfig, TaskKind
from service.api.drop_in.embedding import EXAMPLES, check_embedder, check_given
from service.api.drop_in.scores import (
    PREDICTION,
    Ranking,
    ScoresRequest,
    ScoreWeights,
    label_bytes,
    predictions,
    ranked,
)
from service.api.native.texts import OBJECTS
from service.api.requests import Distinct
from service.api.tei.vectors import (
    ERRORS,
    EmbedRequest,
    EmbedSparseRequest,
    TeiRequest,
    add_compute_headers,
    embed_sparse,
    embed_texts,
)
from service.api.wire.bodies import OPENAPI
from service.api.wire.pictures import element, loaded, wrong
from service.api.wire.replies import replies
from service.api.wire.route import CHARACTER_BYTES, ApiExchange, JsonRoute, ModelRequest, validated
from service.api.wire.schemas import any_of, named, schema
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.ranking.choice import RankTexts
from service.inference.tasks.task_heads import (
    TEMPLATE,
    Aggregation,
    Grouping,
    TokenLabels,
    label_texts,
    probabilities,
    required_task,
    sigmoid,
    softmax,
    spans,
    task_scores,
    zero_shot_logits,
)
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import Text

router = APIRouter(route_class=JsonRoute)
SCORE_BYTES = 24


class SimilarityInput(BaseModel):
    """Source sentence, and the sentences to compare with it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TeiRequest):
    """Tokenisation options of the sentences."""

    prompt_name: str | None = Field(
        None, description="Name of a prompt in the checkpoint's configuration."
    )

    weights: ScoreWeights | None = Field(
        None, description="Weights of the scores of bge-m3's three vectors, in place of the cosine."
    )


class SimilarityRequest(ScoresRequest):
    """Request body of `POST /similarity`."""

    needs = check_embedder

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score each sentence."""
        parameters, given = self.parameters or SimilarityParameters(), self.inputs
        check_given([given.source_sentence], "inputs.source_sentence")
        check_given(given.sentences, "inputs.sentences")
        texts = RankTexts(
            [given.source_sentence],
            given.sentences,
            parameters.options(exchange),
            (parameters.prompt_name, parameters.prompt_name),
            ("inputs.source_sentence", "inputs.sentences[{}]"),
            weights=parameters.weights.model_dump() if parameters.weights else None,
            similarity="cosine" if parameters.weights is None else None,
        )
        return await ranked(exchange, texts, SCORE_BYTES)

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the score of each sentence."""
        del exchange
        return ranking.scores()


@router.post("/similarity", tags=["tei"], responses=replies([float], ERRORS))
async def similarity(body: SimilarityRequest, exchange: ApiExchange) -> Response:
    """Return the cosine, or hybrid score, of each of `sentences` with `source_sentence`."""
    given = body.inputs
    response = await body.answer(exchange)
    return add_compute_headers(response, exchange, [given.source_sentence, *given.sentences])


RANK = named("TeiRank", {"index": int, "score": float, "text?": str})


class RerankRequest(TeiRequest, ScoresRequest):
    """Request body of `POST /rerank` with `texts`."""

    form_fields: ClassVar[frozenset[str]] = frozenset({"texts"})

    query: str
    texts: list[str] = Field(description="Texts to rank.")
    raw_scores: bool = Field(
        False, description="Logits without a sigmoid; MaxSim scores never get one."
    )
    weights: ScoreWeights | None = Field(
        None, description="Weights of the scores of bge-m3's three vectors; all 1 by default."
    )
    return_text: bool = Field(False, description="Whether each result includes its text.")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each text with the query."""
        return [(self.query, text) for text in self.texts]

    async def ranking(self, exchange: ApiExchange) -> Ranking:
        """Reserve the reply, and score the texts."""
        options, weights = self.options(exchange), self.weights
        check_given(self.pairs, "texts")
        texts = RankTexts(
            [self.query],
            self.texts,
            options,
            names=("the query", "texts[{}]"),
            weights=weights.model_dump() if weights else None,
        )
        return await ranked(exchange, texts, returned=self.return_text)

    def content(self, exchange: ApiExchange, ranking: Ranking) -> object:
        """Return the ranks, the most relevant to the query first."""
        del exchange
        return [
            {"index": index, "score": score}
            | ({"text": self.texts[index]} if self.return_text else {})
            for index, score in ranking.best(raw=self.raw_scores)
        ]

    async def answer(self, exchange: ApiExchange) -> Response:
        """Reply with the ranks, and TEI's headers."""
        return add_compute_headers(await super().answer(exchange), exchange, self.pairs)


SPAN_BYTES = 96
"""Predicted bytes of a span in JSON, without its text and label."""
LOGIT_BYTES = 4
"""Bytes of a token's logit, held until the spans are computed."""


LABELLED_SPAN = named(
    "LabelledSpan", {"score": float, "label": str, "start": int, "end": int, "text": str}
)


def span_bytes(texts: Sequence[str], tokenized: Sequence[Text], task: TaskConfig) -> int:
    """Return the predicted bytes of the spans of all texts, and of their logits."""
    token_bytes = SPAN_BYTES + 2 * max(map(len, task.labels)) + LOGIT_BYTES * task.outputs
    size = 0
    for text, tokens in zip(texts, tokenized, strict=True):
        shown = sum(end - start for start, end in tokens.offsets)  # byte tokens share it
        size += token_bytes * len(tokens.input_ids) + CHARACTER_BYTES * max(shown, len(text))
    return size


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
        raise wrong(_FORMS)
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
    raise wrong(_FORMS)


_SEQUENCE = schema([str, ...], maxItems=2)


class PredictRequest(TeiRequest):
    """Request body of `POST /predict`."""

    takes_files = True
    inputs: Annotated[
        PredictInputs,
        PlainValidator(_inputs),
        WithJsonSchema(
            schema(
                any_of(str, _SEQUENCE, *OBJECTS, [any_of(_SEQUENCE, *OBJECTS), ...]),
                examples=EXAMPLES,
            )
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
        Annotated[Distinct[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_LABELS)]
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

    def best_labels(
        self, logits: Sequence[Floats], labels: Sequence[str], scores: Callable[[Floats], Floats]
    ) -> list[list[dict[str, object]]]:
        """Return the best labels of each input; `scores` makes scores of logits."""
        own = (lambda row: row) if self.raw_scores else scores
        return [predictions(row, labels, own(row))[: self.top_k] for row in logits]


_LABELS = any_of([PREDICTION], [LABELLED_SPAN])


@router.post(
    "/predict",
    tags=["tasks"],
    responses=replies(any_of(_LABELS, [_LABELS]), ERRORS),
    openapi_extra=OPENAPI,
)
async def predict(body: PredictRequest, exchange: ApiExchange) -> Response:
    """Classify each input, the largest score first: softmax of several labels, sigmoid of one.

    A token classifier returns the labelled spans of each text, in order. With `labels`, a model
    with two towers scores each picture by them: softmax with CLIP, sigmoid with SigLIP.
    """
    texts, model = await loaded(body.inputs.texts, exchange), exchange.model
    if body.labels is not None or model.vision is not None:
        content, timings = await _by_labels(body, texts, exchange)
    elif body.template is not None:
        raise Unprocessable("template is for `labels`: add them, or leave it out")
    else:
        task = body.check_model(model.inference)
        answer = _of_tokens if task.kind == "token_classification" else _of_texts
        content, timings = await answer(body, texts, exchange, task)
    batch = body.inputs.batch
    response = await exchange.json_reply(lambda: content() if batch else content()[0], timings)
    return add_compute_headers(response, exchange, texts)


Answer = tuple[Callable[[], Sequence[object]], Timings]
"""Function that returns the result of each input, and the timings."""


async def _of_texts(
    body: PredictRequest, texts: Sequence[Input], exchange: ApiExchange, task: TaskConfig
) -> Answer:
    if body.aggregation is not None:
        raise Unprocessable("aggregation applies to token labels; this model labels whole texts")
    check_given(texts, "inputs")
    inference, caller = exchange.model.inference, exchange.call()
    prepared = await inference.prepare(texts, body.options(exchange), caller, "encode")
    exchange.reserve(label_bytes(len(texts), task.labels))
    logits = await task_scores(inference, prepared, task)
    return partial(body.best_labels, logits, task.labels, probabilities), prepared.timings


async def _of_tokens(
    body: PredictRequest, inputs: Sequence[Input], exchange: ApiExchange, task: TaskConfig
) -> Answer:
    if body.top_k is not None:
        raise Unprocessable("top_k applies to labels of whole texts; this model labels tokens")
    aggregation = body.aggregation or "simple"
    if body.raw_scores and aggregation != "none":
        raise Unprocessable('raw_scores apply to single tokens: send "aggregation": "none"')
    texts = [given for given in inputs if isinstance(given, str)]
    for index, given in enumerate(inputs):
        if not isinstance(given, str):
            kind = "picture" if isinstance(given, Picture) else "pair"
            raise Unprocessable(
                f"inputs[{index}] is a {kind}; this model labels the tokens of single texts"
            )
    inference, caller = exchange.model.inference, exchange.call()
    prepared = await inference.prepare(texts, body.options(exchange), caller, "encode")
    exchange.reserve(span_bytes(texts, prepared.texts, task))
    logits = await task_scores(inference, prepared, task)
    grouping = Grouping(aggregation, task.labels, raw=body.raw_scores)

    def label_spans() -> list[list[dict[str, object]]]:
        return [
            [
                span._asdict() | {"text": each.text[span.start : span.end]}
                for span in spans(each, grouping, inference.tokenizer)
            ]
            for each in map(TokenLabels, texts, prepared.texts, logits)
        ]

    content = await asyncio.to_thread(label_spans)
    return lambda: content, prepared.timings


async def _by_labels(
    body: PredictRequest, pictures: Sequence[Input], exchange: ApiExchange
) -> Answer:
    """Score pictures by the labels of the request."""
    model, labels = exchange.model, body.labels
    dual = model.artifact.manifest.dual
    if model.vision is None or dual is None:
        raise Unprocessable("labels: this model has labels of its own, or none: leave them out")
    if labels is None:
        raise Unprocessable("labels: this model has none of its own: name those to choose from")
    if body.aggregation is not None:
        raise Unprocessable("aggregation applies to token labels, not to `labels`")
    for index, given in enumerate(pictures):
        if not isinstance(given, Picture):
            raise Unprocessable(f"inputs[{index}] is no picture: `labels` are for pictures")
    check_given(pictures, "inputs")
    texts, caller = label_texts(labels, body.template), exchange.call()
    towers, reading = (model.vision.inference, model.inference), body.options(exchange)
    options = replace(reading, naming="labels[{}]")
    named = await towers[1].prepare(texts, options, caller, "encode")
    seen = await towers[0].prepare(pictures, reading, caller, "encode")
    size = label_bytes(len(pictures), labels)
    held = size + 4 * model.inference.vectors.size() * (len(pictures) + len(labels))
    exchange.reserve(size, held=held, advice=None)
    logits = await zero_shot_logits(dual, (towers[0], seen), (towers[1], named))
    scores = softmax if dual.kind == "clip" else sigmoid
    return partial(body.best_labels, logits, labels, scores), seen.timings + named.timings


class RootRequest(ModelRequest):
    """Request of the route for the model's task."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        frozen=True,
        json_schema_extra={
            "anyOf": [
                {"$ref": f"#/components/schemas/{request.__name__}"}
                for request in (EmbedRequest, PredictRequest, EmbedSparseRequest, RerankRequest)
            ]
        },
    )


@router.post("/", tags=["tei"], responses=ERRORS)
async def root(body: RootRequest, exchange: ApiExchange) -> Response:
    """Dispatch to /rerank, /predict, /embed_sparse or /embed, by the model's task."""
    task = exchange.model.inference.manifest.task
    content = {**(body.model_extra or {}), "model": body.model}
    match task and (task.kind, task.outputs):
        case ("sequence_classification", 1):
            return await validated(RerankRequest, content).answer(exchange)
        case ("sequence_classification" | "token_classification", _):
            return await predict(validated(PredictRequest, content), exchange)
        case ("sparse", _):
            return await embed_sparse(validated(EmbedSparseRequest, content), exchange)
    return await embed_texts(validated(EmbedRequest, content), exchange)
