"""`POST /explain`: explanations of the similarity of two texts or pictures.

Notation: B pairs, S_a and S_b tokens of the texts of a pair, L layers, N heads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Literal

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.config.encoder import EncoderConfig
from model.numerics.pooling import PoolingName
from model.numerics.task_head import TaskConfig, TaskKind
from service.api.native.texts import (
    OBJECTS,
    TEXT,
    Envelope,
    TextRequest,
    reply,
    text_fields,
    text_tensors,
)
from service.api.requests import Distinct, list_of
from service.api.wire.json_pieces import safetensors_parts
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, SAFETENSORS, Part, Unwritten
from service.api.wire.pictures import element, wrong
from service.api.wire.replies import PROBLEMS, replies
from service.api.wire.route import ApiExchange, JsonRoute, PartsResponse
from service.api.wire.schemas import any_of, named, schema
from service.engines.contract import Output
from service.errors import NoEmbeddings, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.explanation.decomposition import check_memory
from service.inference.explanation.explanation import Explainer, PairExplanation, check_explainable
from service.inference.explanation.spans import Block, SpanKind
from service.inference.explanation.tower import ExplainOptions, Side, Tower, fitting_pair
from service.inference.ranking.choice import RankTexts, scorer_of
from service.inference.ranking.ranker import each_document
from service.inference.ranking.scorers import MatchedToken
from service.inference.tokenization.inputs import Input, Picture
from service.inference.tokenization.text import Text
from service.scheduler.call import Call
from service.scheduler.lanes import LaneName


def _pair(value: object, index: int) -> tuple[Input, Input]:
    match value:
        case [str() | dict() as first, str() | dict() as second]:
            return _side(first, index, 0), _side(second, index, 1)
    raise wrong(f"inputs[{index}] is no pair of texts or pictures")


def _side(value: str | dict[str, object], index: int, side: int) -> Input:
    return value if isinstance(value, str) else element(value, f"inputs[{index}][{side}]")


def _in_turn(pairs: Sequence[tuple[Input, Input]]) -> list[Input]:
    """Return the items of pairs in turn.

    All first items of the pairs are texts or all are pictures, and so are all second items.
    """
    for index, pair in enumerate(pairs):
        for side, (given, first) in enumerate(zip(pair, pairs[0], strict=True)):
            if isinstance(given, Picture) != isinstance(first, Picture):
                raise wrong(
                    f"inputs[{index}][{side}] and inputs[0][{side}] are a text and a picture: send "
                    "pairs of each kind in requests of their own"
                )
    return [given for pair in pairs for given in pair]


_ITEM = any_of(str, *OBJECTS)
Sides = Annotated[
    list[Input],
    list_of(_pair, "a list with at least one pair of texts or pictures is needed"),
    AfterValidator(_in_turn),
    WithJsonSchema(
        schema(
            [[_ITEM, _ITEM], ...],
            examples=[[["A man is playing a guitar.", "Someone plays an instrument."]]],
        )
    ),
]


Method = Literal["pairs", "occlusion", "decomposition", "heads", "matches"]
MATCHED: tuple[TaskKind, ...] = ("sparse", "late_interaction")
"""Task kinds whose similarity is a sum over words or tokens."""
FEWER = "ask for fewer pairs, or for occlusion alone"
_NO_EMBEDDINGS = PROBLEMS[404] | {"description": "The model does not embed texts"}


class ExplainRequest(TextRequest):
    """Request body of `POST /explain`."""

    inputs: Sides = Field(description="Pairs of texts or pictures; each is encoded by itself.")
    include: Distinct[Method] | None = Field(
        None,
        description="Shares of each pair of tokens, the loss without each token, shares of each "
        'pair of input tokens, the loss without each head; ["pairs"] by default, with two towers '
        '["decomposition"]. Sparse encoders and late-interaction models support only ["matches"].',
    )
    layer: int = Field(
        -1, description="Hidden state: 0 = embeddings … L = last; negative from the end."
    )
    pooling: PoolingName | None = Field(None, description="The checkpoint's default.")
    spans: SpanKind | None = Field(
        None, description="Units that occlusion removes; single tokens by default."
    )
    block: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Patches along the edge of the squares of a picture that occlusion removes; 1 "
        "by default.",
    )
    top: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Number of spans of each text to occlude, those with the largest shares in "
        "the cosine of both texts' mean vectors; with two towers those whose tokens' projected "
        "states are most like the other vector; all by default.",
    )

    @property
    def sides(self) -> tuple[list[Input], list[Input]]:
        """First texts and second texts of the pairs."""
        return self.inputs[::2], self.inputs[1::2]


TOKEN_BYTES = 64
"""Predicted bytes of a token with its id and offsets, which the binary format holds as JSON too."""
SPAN_BYTES, SPAN_TOKEN_BYTES = 64, 8
"""Predicted bytes of a span without its tokens, and of each of its tokens, in JSON."""
MATCH_BYTES = 96
"""Predicted bytes of a match in JSON."""
PAIR_BYTES = 512
"""Predicted bytes of a pair without its arrays and tokens."""
REPLY_BYTES = 1024
"""Predicted bytes of a reply without its pairs, mostly names of the binary format."""
ERRORS = {"pairs": "completeness_error", "decomposition": "decomposition_error"}
"""Method → name of the field with the error of its sum."""


def reply_bytes(
    options: ExplainOptions, sides: Sequence[Side], config: EncoderConfig, *, binary: bool
) -> int:
    """Return the predicted bytes of a reply; the texts of a pair are adjacent in `sides`."""
    heads = config.num_hidden_layers * config.num_attention_heads * options.heads
    each, size = 4 if binary else JSON_BYTES_PER_FLOAT, REPLY_BYTES
    for first, second in zip(sides[::2], sides[1::2], strict=True):
        tokens, spans = first.tokens + second.tokens, first.spans + second.spans
        numbers = first.tokens * second.tokens * (options.pairs + options.decomposition)
        numbers += spans * options.occlusion + heads
        size += each * numbers + TOKEN_BYTES * tokens + PAIR_BYTES
        if options.spans != "tokens" or first.picture or second.picture:
            size += SPAN_BYTES * spans + SPAN_TOKEN_BYTES * tokens
    return size


def matches_bytes(texts: Sequence[Text]) -> int:
    """Return the predicted bytes of a reply with matches, without the matches."""
    tokens = sum(len(text.input_ids) for text in texts)
    return 2 * TOKEN_BYTES * tokens + PAIR_BYTES * len(texts) // 2


def explain_json(envelope: Envelope, pairs: Sequence[Mapping[str, object]]) -> Unwritten:
    """Yield the JSON reply by the fields of each pair; fields not requested are absent."""

    def facts(text: Text) -> dict[str, object]:
        fields = text_fields(text)
        del fields["segment_ids"]  # all in one segment
        return fields

    texts = envelope.texts
    results = (
        {"similarity": own["similarity"], "texts": [*map(facts, texts[2 * n : 2 * n + 2])], **own}
        for n, own in enumerate(pairs)
    )
    return envelope.pieces(results)


def match_fields(
    similarity: float, matches: Sequence[MatchedToken], *, mean: bool
) -> dict[str, object]:
    """Return the fields of a pair, with |sum or mean of the products − similarity|."""
    total = sum(match.score for match in matches) / (len(matches) if mean and matches else 1)
    named = [match._asdict() for match in matches]
    return {
        "similarity": similarity,
        "matches": [{name: n for name, n in each.items() if n is not None} for each in named],
        "completeness_error": abs(total - similarity) if matches else 0.0,
    }


def explain_safetensors(envelope: Envelope, pairs: Sequence[PairExplanation]) -> list[Part]:
    """Return the binary reply: `similarity` `[B]`; `pairs.{i}`, `occlusion.{i}.a`, … of each pair.

    The losses without each head are one tensor, `heads` `[B, L, N]`.
    """
    first, tensors = pairs[0], dict[str, NDArray[np.generic]]()

    def add(name: str, values: Sequence[object], dtype: type[np.generic] = np.float32) -> None:
        tensors[name] = np.array(values, dtype)  # in which None becomes NaN

    add("similarity", [pair.similarity for pair in pairs])
    for name in first.wanted:
        add(f"computed.{name}", [pair.computed[name] for pair in pairs], np.int32)
    if first.wanted:
        add("partial", [pair.partial for pair in pairs], np.uint8)
    for number, pair in enumerate(pairs):
        shares = pair.shares.items()
        tensors |= {f"{name}.{number}": np.ascontiguousarray(matrix) for name, matrix in shares}
        for side, losses in zip("ab", pair.occlusion or (), strict=False):
            tensors[f"occlusion.{number}.{side}"] = losses
    if first.heads is not None:
        add("heads", [pair.heads for pair in pairs])
    for name in first.shares:
        add(ERRORS[name], [pair.error(pair.shares[name]) for pair in pairs])
    agreements = [pair.agreement() for pair in pairs]
    for name in agreements[0]:
        add(f"agreement.{name}", [own[name] for own in agreements])
    lists = envelope.metadata()
    if _spans(first):
        lists["spans"] = orjson.dumps([_spans(pair) for pair in pairs]).decode()
    return safetensors_parts(tensors | text_tensors(envelope.texts), lists)


def pair_fields(pair: PairExplanation) -> dict[str, object]:
    """Return the fields of a pair; fields not requested are absent."""
    fields: dict[str, object] = {"similarity": pair.similarity}
    for name, matrix in pair.shares.items():
        computed = pair.computed.get(name, 1)
        fields[name] = np.ascontiguousarray(matrix) if computed else None
        fields[ERRORS[name]] = pair.error(matrix)
    if pair.occlusion is not None:
        if spans := _spans(pair):
            fields["spans"] = spans
        fields["occlusion"] = list(pair.occlusion)
        if pair.shares:
            fields["agreement"] = pair.agreement()
    if pair.heads is not None:
        fields["heads"] = pair.heads
    if pair.wanted:
        fields |= {"partial": pair.partial, "computed": pair.computed}
    return fields


def _spans(pair: PairExplanation) -> list[list[dict[str, object]]] | None:
    """Return the spans of both texts; None without occlusion, or if spans are single tokens."""
    tokens = pair.span_kind == "tokens" and not any(
        isinstance(span, Block) for spans in pair.spans for span in spans
    )
    if pair.occlusion is None or tokens:
        return None
    return [[asdict(span) for span in spans] for spans in pair.spans]


_MATCH = named(
    "TokenMatch",
    {
        "query": (int, "Token of the first text; for sparse encoders, of its word's weight."),
        "document": (int, "Its best match in the second text, or the token with the same word."),
        "score": (float, "Summand of the similarity."),
        "token_id?": (int, "Word's id, for sparse encoders."),
    },
)
_SPAN = named(
    "ExplainSpan",
    {
        "start": (int, "Offset in code points."),
        "end": int,
        "tokens": ([int], "Indices of the span's tokens."),
    },
)
_BLOCK = named(
    "ExplainBlock",
    {
        "rows": ([int, int], "First row, and the row after the last."),
        "columns": [int, int],
        "tokens": ([int], "Indices of the tokens of the patches."),
    },
)
_TEXT = {name: form for name, form in TEXT.items() if name != "segment_ids"}
_SPANS = any_of([_SPAN], [_BLOCK])
_ERROR = (float, "|sum − similarity|.")
RESULT = named(
    "ExplainResult",
    {
        "similarity": float,
        "texts": [_TEXT, _TEXT],
        "pairs?": ([[float]], "`[S_a][S_b]`, sums to similarity."),
        "completeness_error?": _ERROR,
        "occlusion?": (
            [[float | None], [float | None]],
            "`[S_a]` and `[S_b]`, or one value for each of `spans`: loss of similarity without "
            "that token or span; null if not computed.",
        ),
        "spans?": (
            [_SPANS, _SPANS],
            "Spans of `occlusion`, unless these are the single tokens of two texts.",
        ),
        "decomposition?": (
            [[float]],
            "`[S_a][S_b]` of input tokens, sums to similarity; null if not computed.",
        ),
        "decomposition_error?": _ERROR,
        "heads?": (
            [[float | None]],
            "`[layers][heads]`: loss of similarity with that head zeroed in both texts; null if "
            "not computed.",
        ),
        "partial?": (
            bool,
            "Whether the deadline passed before occlusion, decomposition and heads were complete.",
        ),
        "computed?": (
            dict[str, int],
            "Number of computed values of `occlusion` and `heads`, and of computed decompositions "
            "(0 or 1).",
        ),
        "agreement?": (
            dict[str, float | None],
            "Spearman correlation of each method's row and column sums with occlusion.",
        ),
        "matches?": ([_MATCH], "Of a sparse encoder or a late-interaction model."),
    },
)
REPLY = reply("ExplainReply", {"results": [RESULT]})
router = APIRouter(route_class=JsonRoute, tags=["inference"])


@router.post(
    "/explain",
    responses=replies(REPLY, {**PROBLEMS, NoEmbeddings.status: _NO_EMBEDDINGS}, binary=True),
)
async def explain(body: ExplainRequest, exchange: ApiExchange) -> Response:
    """Explain the similarity of two texts or pictures by shares, and by the loss without a part."""
    model = exchange.model
    task = model.inference.manifest.task
    if task is not None and task.kind in MATCHED:
        return await explained_by_matches(body, exchange, task)
    binary = exchange.wants_safetensors()
    towers = [model.tower(side).inference for side in body.sides]
    options = [explain_options(body, inference) for inference in towers]
    for side in zip(towers, options, strict=True):
        check_explainable(*side)
    if options[0].heads and towers[0] is not towers[1]:
        raise Unprocessable(
            "heads are switched off in both sides of a pair, and here each side has a tower of its "
            'own: leave "heads" out of `include`, or send pairs of two texts or two pictures'
        )
    body = await body.with_pictures(exchange)
    explainer = await prepared_explainer(body, towers, options, exchange.call())
    size = checked_size(exchange, explainer, binary=binary)
    held = size + explainer.bytes_at_a_time
    exchange.reserve(size, held=held, advice=None)
    explanations = await explainer.explain(size)
    timings, engine = explainer.timings, explainer.towers[0].prepared.engine
    envelope = Envelope(model.name, engine, explainer.texts, warnings=timings.warnings, pairs=True)
    if binary:
        tensors = await asyncio.to_thread(explain_safetensors, envelope, explanations)
        return PartsResponse(tensors, SAFETENSORS, timings)
    pairs = await asyncio.to_thread(lambda: [*map(pair_fields, explanations)])
    return PartsResponse([explain_json(envelope, pairs)], JSON, timings)


def checked_size(exchange: ApiExchange, explainer: Explainer, *, binary: bool) -> int:
    """Return the predicted bytes of a reply."""
    options, config = explainer.options, explainer.configs[0]
    settings = exchange.service.settings
    if options.decomposition:
        check_memory(explainer.texts, explainer.configs, settings.max_bytes_in_flight)

    def size_of(sides: Sequence[Side]) -> int:
        return reply_bytes(options, sides, config, binary=binary)

    size, limit = size_of(explainer.sides), settings.max_response_bytes
    if size > limit:
        fits = fitting_pair(explainer.sides, options, lambda pair: size_of(pair) <= limit)
        exchange.check_size(size, f"{fits}; {FEWER}", binary=binary)
    return size


async def explained_by_matches(
    body: ExplainRequest, exchange: ApiExchange, task: TaskConfig
) -> Response:
    """Return the matches between two texts, for sparse encoders and late-interaction models."""
    given = (body.layer, body.pooling, body.spans, body.block, body.top)
    if body.include not in (None, ["matches"]) or given != (-1, None, None, None, None):
        raise Unprocessable(
            "this model has only matches, of its last layer: leave out include, layer, pooling, "
            "spans, block and top"
        )
    if exchange.wants_safetensors():
        raise Unprocessable(f"matches are JSON: leave {SAFETENSORS} out of Accept")
    if task.late is not None and body.prompt_name is not None:
        raise Unprocessable(
            "prompt_name is not for this model: the first text of a pair is a query, the second a "
            "document"
        )
    body = await body.with_pictures(exchange)  # refuses pictures, as these models read texts
    queries, documents = ([text for text in side if isinstance(text, str)] for side in body.sides)
    names, prompts = ("inputs[{}][0]", "inputs[{}][1]"), (body.prompt_name, body.prompt_name)
    asked = RankTexts(queries, documents, body.options, prompts, names, explains=True)
    caller, inference = exchange.call(), exchange.model.inference
    scorer = await scorer_of(inference, asked, caller, body.backend)
    numbers = range(len(scorer.documents.texts))
    texts = [text for n in numbers for text in (scorer.whole_query(n), scorer.document(n))]
    size = matches_bytes(texts)
    held = size + scorer.query_bytes
    exchange.check_size(held, FEWER)

    def read(number: int, output: Output) -> tuple[float, Sequence[MatchedToken]]:
        return scorer.score(number, output), scorer.matches(number, output)

    exchange.reserve(size, held=held, advice=None)
    found = await each_document(scorer, "attention", caller, read)
    exchange.check_size(MATCH_BYTES * sum(len(matches) for _, matches in found.values()), FEWER)
    name, engine, timings = exchange.model.name, scorer.documents.engine, scorer.timings
    envelope = Envelope(name, engine, texts, warnings=timings.warnings, pairs=True)
    mean = scorer.scoring == "meanmaxsim"
    pairs = await asyncio.to_thread(
        lambda: [match_fields(*found[number], mean=mean) for number in numbers]
    )
    return PartsResponse([explain_json(envelope, pairs)], JSON, timings)


def explain_options(body: ExplainRequest, inference: Inference) -> ExplainOptions:
    """Return the options of a request, with a non-negative layer index."""
    default: Method = "decomposition" if inference.tower else "pairs"
    states, include = inference.config.num_hidden_layers + 1, body.include or [default]
    if not -states <= body.layer < states:
        raise Unprocessable(f"layer {body.layer} is not in {-states} … {states - 1}")
    if "matches" in include:
        raise Unprocessable(
            "matches are for sparse encoders and late-interaction models; this model has pairs, "
            "occlusion, decomposition and heads"
        )
    if "occlusion" not in include and (body.spans, body.block, body.top) != (None, None, None):
        raise Unprocessable('spans, block and top apply to occlusion: add "occlusion" to include')
    pictured = any(isinstance(given, Picture) for given in body.inputs[:2])
    if body.block is not None and not pictured:
        raise Unprocessable("block is for pictures, and these pairs are of texts: leave it out")
    return ExplainOptions(
        layer=body.layer % states,
        pooling=body.pooling,
        pairs="pairs" in include,
        occlusion="occlusion" in include,
        decomposition="decomposition" in include,
        heads="heads" in include,
        spans=body.spans or "tokens",
        top=body.top,
        block=body.block or 1,
    )


async def prepared_explainer(
    body: ExplainRequest,
    towers: Sequence[Inference],
    options: Sequence[ExplainOptions],
    caller: Call,
) -> Explainer:
    """Tokenise the first and the second texts of all pairs, each side for its tower."""
    prepared: list[PreparedTexts] = []
    for side, (inference, inputs) in enumerate(zip(towers, body.sides, strict=True)):
        lane: LaneName = "encode" if inference.manifest.static else "attention"
        reading = replace(body.options, naming=f"inputs[{{}}][{side}]")
        if towers[0] is not towers[1] and isinstance(inputs[0], Picture):
            reading = replace(reading, prompt_name=None, task=None)  # of the texts
        beside = sum(other.characters for other in prepared if towers[0] is towers[1])
        prepared.append(
            await inference.prepare(inputs, reading, caller, lane, body.backend, beside=beside)
        )
    first, second = prepared
    texts = [text for pair in zip(first.texts, second.texts, strict=True) for text in pair]
    if towers[0] is towers[1]:
        joined = replace(first, texts=texts, timings=first.timings + second.timings)
        tower = Tower(towers[0], options[0], joined)
        both = tower, tower
    else:
        both = Tower(towers[0], options[0], first, 1), Tower(towers[1], options[1], second, 1)
    return await asyncio.to_thread(Explainer, both, body.inputs, texts)
