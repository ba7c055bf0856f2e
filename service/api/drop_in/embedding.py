"""Forms of several dialects: errors, usage, models; texts, token ids or pictures in, vectors out.

Notation: S tokens of one text, H hidden size, D features of a text's vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import PlainValidator
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from model.artifact.manifest import MANIFEST
from model.numerics.quantization import Quantization
from service.api.wire.json_pieces import base64_pieces, json_pieces
from service.api.wire.media import JSON, JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.pictures import Shares, in_order, loaded, together
from service.api.wire.replies import Responses, error_reply
from service.api.wire.route import ApiExchange, PartsResponse
from service.api.wire.schemas import any_of, named, schema
from service.engines.contract import Floats
from service.errors import EmptyInputs, NoEmbeddings, NoTaskHead, ServiceError, Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.inference.plan import Plan
from service.inference.timings import Timings
from service.inference.tokenization.inputs import Input, Picture, TokenIds, size_of
from service.inference.tokenization.tokenizer import Options
from service.models.served import ServedModel

BAD_REQUEST = 400
UNSATISFIABLE = {Unprocessable.status: BAD_REQUEST, NoTaskHead.status: BAD_REQUEST}
"""Native status → status of requests that cannot be satisfied, in Cohere's and vLLM's APIs."""


def json_error(
    error: ServiceError, body: object, statuses: Mapping[int, int] | None = None
) -> Response:
    """Return the reply of an error, with its status in a dialect by the native status."""
    response = error_reply(error, orjson.dumps(body), JSON)
    response.status_code = (statuses or {}).get(error.status, error.status)
    return response


NESTED_FIELDS = {"error": {"message": str, "type?": str, "param?": str, "code?": int | str}}
"""Message and kind of an error, and the field that caused it, in OpenAI's form."""
NESTED_ERROR = named("NestedError", NESTED_FIELDS)


def errors_of_both(errors: Responses, others: Responses) -> Responses:
    """Return the documented errors of a path that two dialects share, in the form of either."""
    both = dict[int | str, dict[str, Any]]()
    for status in errors.keys() & others.keys():
        forms = [own[status].get("content", {}).get(JSON) for own in (errors, others)]
        if all(forms):
            form = any_of(*(one["schema"] for one in forms if one))
            both[status] = {**errors[status], "content": {JSON: {"schema": form}}}
    return {**others, **errors, **both}


USAGE = named("TokenUsage", {"prompt_tokens": int, "total_tokens": int})


def usage(timings: Timings) -> dict[str, object]:
    """Return the content of `USAGE`."""
    return {"prompt_tokens": timings.tokens, "total_tokens": timings.tokens}


EMBEDDING_ITEM = named(
    "EmbeddingItem", {"object": "embedding", "embedding": any_of([float], str), "index": int}
)
"""Schema of a vector, and of the index of its text in the request."""


CREATED = (
    "Unix time in seconds at which the artifact's manifest, or the config of a checkpoint that is "
    "not loaded, was written."
)
"""Description of the last value of `listed_models`."""


async def listed_models(exchange: ApiExchange) -> list[tuple[str, ServedModel | None, int]]:
    """Return the names that a request can choose, the default first, with models that are loaded.

    The third value is `CREATED`.
    """
    unloaded = await exchange.service.control.on_demand()
    return [
        *(
            (name, model, int(model.artifact.path(MANIFEST).stat().st_mtime))
            for name, model in exchange.service.models.by_name.items()
        ),
        *((name, None, created) for name, created in unloaded.items()),
    ]


EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Maximum bytes of an 8-bit number and its comma in JSON."""
BASE64_BYTES_PER_FLOAT = 6
"""Bytes of a float32 in base64, rounded up."""
_UNIT = np.array([[-128.5], [126.5]], np.float32) / np.float32(127)
"""Range of features whose 256 buckets are the integers nearest to 127 x."""


@dataclass(frozen=True)
class VectorForm:
    """Conversion and serialisation of one vector type."""

    convert: Quantization
    feature_bytes: float
    """Predicted bytes of a feature in JSON."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """Return a vector `[D]` or matrix as JSON."""
        converted = self.convert(vector)
        return base64_pieces(converted) if self.as_base64 else json_pieces(converted)


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(Quantization(), JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(Quantization("int8", _UNIT), INTEGER_BYTES),
    "uint8": VectorForm(Quantization("uint8", _UNIT), INTEGER_BYTES),
    "binary": VectorForm(Quantization("binary"), INTEGER_BYTES / 8),
    "ubinary": VectorForm(Quantization("ubinary"), INTEGER_BYTES / 8),
    "base64": VectorForm(Quantization(), BASE64_BYTES_PER_FLOAT, as_base64=True),
}


@dataclass(frozen=True)
class ListForm:
    """JSON format of a list of vectors in one dialect."""

    opening: bytes
    before: bytes = b""
    """JSON of an item before its vector, with `%d` for its index."""
    after: bytes = b""
    closing: Callable[[Timings], Mapping[str, object]] | None = None
    """Function from the timings of the request to the fields after the list."""
    kind: EmbeddingType = "float"
    """Type of the vectors."""
    item_bytes: int = 64
    """Predicted bytes of an item, without its vector."""
    kept: int | None = None
    """Number of leading features to write; all if None."""

    def pieces(self, vectors: Sequence[Floats], timings: Timings) -> Unwritten:
        """Yield the JSON reply."""
        opening, form = self.opening, FORMS[self.kind]
        for number, vector in enumerate(vectors):
            index = b"%d" % number
            yield opening + self.before.replace(b"%d", index)
            yield from form.pieces(vector if self.kept is None else vector[: self.kept])
            yield self.after.replace(b"%d", index)
            opening = b","
        yield b"]" if self.closing is None else b"]," + orjson.dumps(self.closing(timings))[1:]


_OTHER_TASKS = {
    "sequence_classification": "labels texts or ranks them: ask /predict or /rerank",
    "token_classification": "labels tokens: ask /predict",
    "sparse": "is a sparse encoder: ask /embed_sparse",
}
_FORMS = "a text, a list of token ids, or a list of either is needed"


def texts_or_ids(value: object) -> list[Input]:
    """Parse a text, a list of token ids (one text), or a list of texts and token-id lists."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("inputs", _FORMS)
    if value and type(value[0]) is int:
        return [token_ids(value)]
    return [item if isinstance(item, str) else token_ids(item) for item in value]


def token_ids(value: object) -> TokenIds:
    """Return a list of non-negative ints as the token ids of one text; a validator for pydantic."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise PydanticCustomError("inputs", _FORMS)
    if (lowest := min(value, default=0)) < 0:
        raise PydanticCustomError("inputs", "token id {id} is negative", {"id": lowest})
    return TokenIds(tuple(value))


IDS_SCHEMA = schema([schema(int, minimum=0)])
EXAMPLES = ["What is Deep Learning?"]
TextsOrIds = Annotated[
    list[Input],
    PlainValidator(texts_or_ids),
    WithJsonSchema(schema(any_of(str, IDS_SCHEMA, [any_of(str, IDS_SCHEMA)]), examples=EXAMPLES)),
]
"""Inputs of a request: a text, the token ids of a text, or a possibly empty list of both."""


@dataclass(frozen=True)
class PreparedEmbedding:
    """Tokenised inputs of a request and the plan of their vectors, by the towers that read them."""

    towers: Shares
    texts: Sequence[PreparedTexts]
    plans: Sequence[Plan]

    def nbytes(self, number: float) -> int:
        """Return the predicted bytes of all vectors, by the bytes of a float."""
        size = 0
        for plan, own in zip(self.plans, self.texts, strict=True):
            size += plan.nbytes(own.texts, number)
        return size

    @property
    def count(self) -> int:
        """Number of items in the reply: spans of the only text, or inputs."""
        count = 0
        for own in self.texts:
            for text in own.texts:
                count += len(text.spans.ranges) if text.spans else 1
        return count

    @property
    def timings(self) -> Timings:
        """Timings of the request so far."""
        return Timings.beside([own.timings for own in self.texts])

    async def vectors(self) -> list[Floats]:
        """Compute the vectors: `[D]` of each input or span, or `[S, H]` of each input's tokens."""
        runs = [
            tower.inference.encode(own, plan)
            for (tower, _), own, plan in zip(self.towers, self.texts, self.plans, strict=True)
        ]
        found = [await runs[0]] if len(runs) == 1 else await together(runs)
        encodings, name = in_order(self.towers, found), self.plans[0].members[-1].name
        if name == "span_vectors":
            return [vector for own in encodings for vector in own[name]]
        return [np.ascontiguousarray(own[name]) for own in encodings]

    async def answer(
        self,
        exchange: ApiExchange,
        form: ListForm,
        finish: Callable[[Floats], Floats] | None = None,
    ) -> Response:
        """Compute the vectors, and reply in a dialect's format.

        `finish` is applied to the array of each input, in a thread.
        """
        size = self.nbytes(FORMS[form.kind].feature_bytes) + form.item_bytes * self.count
        exchange.reserve(size)
        vectors = await self.vectors()
        if finish:
            vectors = await asyncio.to_thread(lambda: [*map(finish, vectors)])
        timings = self.timings
        return PartsResponse([form.pieces(vectors, timings)], JSON, timings)


def check_embedder(inference: Inference) -> None:
    """Reject a model that does not embed texts."""
    task = inference.manifest.task
    if task is not None and task.kind in _OTHER_TASKS:
        raise NoEmbeddings(
            f"{inference.manifest.model} {_OTHER_TASKS[task.kind]}, or serve an embedding model"
        )


def check_given(inputs: Sequence[Input], field: str) -> None:
    """Reject an empty list of inputs, and inputs without a character or token id.

    Pictures are not checked: their files may not be decoded yet.
    """
    if not inputs:
        raise EmptyInputs(f"{field}: empty, at least one text is needed")
    for index, given in enumerate(inputs):
        if not isinstance(given, Picture) and not size_of(given):
            raise EmptyInputs(f"{field}[{index}] is empty")


def check_cut(inputs: Sequence[Input], max_tokens: int | None, field: str) -> None:
    """Reject a number of tokens to cut to, of the named field, for pictures alone."""
    if max_tokens is not None and all(isinstance(given, Picture) for given in inputs):
        raise Unprocessable(f"{field}: pictures are not cut: leave it out")


async def prepare_embedding(
    exchange: ApiExchange, inputs: Sequence[Input], reading: Options, wanted: EncodeOptions
) -> PreparedEmbedding:
    """Tokenise the inputs of a request, at least one, or prepare its pictures."""
    given = await loaded([*inputs], exchange)
    towers, texts, plans = exchange.model.shares(given), list[PreparedTexts](), list[Plan]()
    several = len(towers) > 1
    if several:
        towers.sort(key=lambda share: share[0].inference.tower == "vision")
    for tower, indices in towers:
        inference, own, options = tower.inference, given, reading
        if several:
            own = [given[index] for index in indices]
            options = replace(reading, places=indices)
        if isinstance(own[0], Picture):
            options = of_pictures(options)
        plans.append(_plan(inference, wanted, options))
        texts.append(await inference.prepare(own, options, exchange.call(), "encode"))
    return PreparedEmbedding(towers, texts, plans)


def _plan(inference: Inference, wanted: EncodeOptions, reading: Options) -> Plan:
    """Return the plan of the vectors, which the model keeps for later requests."""
    key = ("embedding", *wanted.outputs, wanted.dimensions, wanted.normalize)
    if found := inference.plans.get(key):
        return found[0]
    size = inference.vectors.size()
    if wanted.dimensions is not None and not 1 <= wanted.dimensions <= size:
        raise Unprocessable(f"dimensions: {wanted.dimensions} is not in 1 … {size}")
    plan = inference.plan(wanted)
    inference.keep(key, (plan, reading))
    return plan


def of_pictures(options: Options) -> Options:
    """Return the options of pictures, which have neither prompts nor tasks and are not cut."""
    return replace(options, prompt_name=None, task=None, max_tokens=None)


_QUERY = ("search_query", "query", "retrieval.query")
_DOCUMENT = ("search_document", "document", "passage", "corpus", "retrieval.passage")
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "search_query": _QUERY,
    "search_document": _DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
    "query": _QUERY,
    "document": _DOCUMENT,
    "retrieval.query": ("retrieval.query", *_QUERY),
    "retrieval.passage": ("retrieval.passage", *_DOCUMENT),
    "text-matching": ("text-matching",),
    "separation": ("separation", "clustering"),
}
"""Input type of Cohere or Jina → names of the prompt in a checkpoint, best first."""


def without_prompt(inference: Inference) -> str | None:
    """Return the `prompt_name` that disables the default prompt, for dialects without prompts."""
    return None if inference.sentence.default_prompt_name is None else ""


def known_prompt(inference: Inference, kind: str) -> str | None:
    """Return the name of the checkpoint's prompt for an input type; None if it has none."""
    return next(
        (name for name in PROMPTS.get(kind, ()) if name in inference.sentence.prompts), None
    )


def prompt_for(inference: Inference, kind: str | None, field: str) -> str | None:
    """Return the name of the prompt for an input type of `PROMPTS`, or the checkpoint's own name.

    Return None without an input type, or if the checkpoint has no prompt for it. `field` names the
    request's field in errors.
    """
    prompts = inference.sentence.prompts
    if kind is None or kind in prompts:
        return kind
    found = known_prompt(inference, kind)
    if found is None and inference.sentence.tasks:
        known = ", ".join(inference.sentence.tasks)
        raise Unprocessable(f"{field}: this model has no task for it; its tasks are {known}")
    if kind not in PROMPTS:
        known = ", ".join([*PROMPTS, *sorted(prompts)])
        raise Unprocessable(f"{field}: unknown; it is one of {known}")
    return found
