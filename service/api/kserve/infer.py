"""`POST /v2/models/{model}/infer`: vectors and attention of texts, as named tensors."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

from service.api.kserve.inputs import (
    LENGTH_HEADER,
    InferParameters,
    InferRequest,
    read_request,
)
from service.api.kserve.models import ERRORS, MODEL, VERSIONED, model_of_path
from service.api.kserve.outputs import (
    ATTENTION,
    LAYERED,
    OUTPUT_OF,
    Output,
    head,
    tails,
    text_values,
    value_pieces,
)
from service.api.native.attention.maps import FEWER_MAPS, stream_reply
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.api.native.encode_request import EncodeRequest, encode_options
from service.api.wire.json_pieces import as_bytes
from service.api.wire.media import JSON, OCTETS, Part, Unwritten
from service.api.wire.replies import with_reply_headers
from service.api.wire.route import (
    INLINE_BYTES,
    ApiExchange,
    PartsResponse,
    bind_model,
    caller_of,
    check_expected,
    check_size,
    reserve,
)
from service.api.wire.schemas import documented_body
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.attention.maps import NO_MAPS, AttentionSelection, LayerMaps, TextSummary
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.field import joined
from service.inference.plan import Plan
from service.inference.tokenization.inputs import Input
from service.scheduler.lanes import LaneName


class MapsWriter:
    """`Writer` that puts the maps last: at the end of the JSON, or of the binary data after it."""

    def __init__(
        self,
        names: Mapping[str, object],
        outputs: Sequence[Output],
        maps: Output,
        *,
        keeps_back: bool,
    ) -> None:
        """Write nothing yet."""
        self.outputs = outputs
        self.length: int | None = None
        self.json_length: int | None = None
        """Bytes of the JSON if binary data follow it; known once the reply has begun."""
        self.keeps_back = keeps_back
        self._names, self._maps = names, maps
        binary = maps.binary or any(output.binary for output in outputs)
        self.media_type = OCTETS if binary else JSON
        self._begun = False

    def dump(self, weights: Floats) -> Floats:
        """Return the weights, contiguous for binary data."""
        return np.ascontiguousarray(weights) if self._maps.binary else weights

    def start(self) -> Sequence[Part | Unwritten]:
        """Return all parts before the maps."""
        pieces = head(self._names, [*self.outputs, self._maps])
        if not self._maps.binary:
            return [pieces]
        json = [*pieces]
        bytes_after = tails(self.outputs)
        self.json_length = sum(map(len, json))
        self.length = self.json_length + sum(map(len, bytes_after)) + self._maps.nbytes
        return json + bytes_after

    def layer(self, maps: LayerMaps) -> Sequence[Part | Unwritten]:
        """Return the maps of a layer."""
        weights = maps.arrays["attention"]
        if self._maps.binary:
            return [as_bytes(weights)]
        separator = [b","] if self._begun else []
        self._begun = True
        return [chain(separator, value_pieces(weights))]

    def text(self, summary: TextSummary) -> list[Part]:  # noqa: ARG002
        """Return no parts: `attention_shapes` marks the end of a text's maps."""
        return []

    def end(self) -> list[Part]:
        """Return the end of the JSON, if the JSON holds the maps."""
        return [] if self._maps.binary else [b"]}]}"]


_OF_VECTORS = ("layer", "pooling", "normalize", "dimensions")
"""Parameters of vectors alone."""


def vector_plan(body: InferRequest, inference: Inference) -> Plan | None:
    """Return the plan of the vectors; None if no vectors are requested."""
    given, wanted = body.parameters, body.wanted
    if not any(name in wanted for name in LAYERED):
        _refuse_set(given, _OF_VECTORS, " or ".join(LAYERED))
    outputs = [*dict.fromkeys(OUTPUT_OF[name].name for name in wanted if name in OUTPUT_OF)]
    if not outputs:
        return None
    options = {name: getattr(given, name) for name in (*_OF_VECTORS, "prompt_name")}
    asked = EncodeRequest.model_construct(inputs=[], outputs=outputs, **options)
    return inference.plan(encode_options(asked, inference.config, inference.vectors))


def map_selection(body: InferRequest, inference: Inference) -> AttentionSelection | None:
    """Return the selection of maps; None if no maps are requested."""
    given, wanted = body.parameters, body.wanted
    names = [field.tensor for field in ATTENTION]
    if not any(name in wanted for name in names):
        _refuse_set(given, ("layers", "heads"), names[0])
        return None
    inference.require_heads()
    asked = AttentionRequest.model_construct(inputs=[], layers=given.layers, heads=given.heads)
    return attention_selection(asked, inference.config)


def _refuse_set(given: InferParameters, names: Sequence[str], output: str) -> None:
    for name in names:
        if name in given.model_fields_set:
            raise Unprocessable(f"parameters.{name} applies to {output}, which is not requested")


_BINARY = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
_BODY = documented_body(InferRequest, **_BINARY)
_BODY["requestBody"]["required"] = True
router = APIRouter(tags=["kserve"])


@dataclasses.dataclass(frozen=True)
class Answering:
    """Inference request with tokenised texts, ready to compute."""

    inference: Inference
    prepared: PreparedTexts
    names: dict[str, object]
    """Fields of the reply before its outputs."""
    plan: Plan | None
    """Plan of the vectors; None if no vectors are requested."""
    selection: AttentionSelection | None
    """Selection of maps; None if no maps are requested."""

    def planned(self, name: str, *, binary: bool) -> Output:
        """Return an output, with values only if the tokens alone determine them."""
        texts = self.prepared.texts
        for output in self.plan.outputs if self.plan else ():
            for field in output.fields:
                if field.tensor == name:
                    return Output(name, output.shape(field, texts), binary)
        lengths = [text.size for text in texts]
        layers, heads = self.selection.maps["encoder"] if self.selection else NO_MAPS
        if name == "attention":
            size = len(layers) * len(heads) * sum(length**2 for length in lengths)
            return Output(name, (size,), binary)
        if name == "attention_shapes":
            shapes = [[len(layers), len(heads), length, length] for length in lengths]
            return Output(name, (len(lengths), 4), binary, np.array(shapes, np.int32))
        values = text_values(name, texts)
        return Output(name, np.shape(values), binary, values)

    async def filled(self, outputs: Sequence[Output]) -> list[Output]:
        """Compute the vectors, and return the outputs with their values."""
        if (plan := self.plan) is None:
            return [*outputs]
        arrays = await self.inference.encode(self.prepared, plan)

        def fill() -> list[Output]:
            tensors = joined(plan.fields, arrays)
            return [
                dataclasses.replace(output, values=tensor, shape=tensor.shape)
                if (tensor := tensors.get(output.name)) is not None
                else output
                for output in outputs
            ]

        inline = sum(output.size for output in outputs) <= INLINE_BYTES
        return fill() if inline else await asyncio.to_thread(fill)


@router.post(MODEL + "/infer", responses=with_reply_headers(ERRORS), openapi_extra=_BODY)
@router.post(VERSIONED + "/infer", include_in_schema=False)
async def infer(exchange: ApiExchange, model: str) -> Response:
    """Compute vectors and attention of texts, and return the requested tensors by name."""
    chosen = await model_of_path(exchange, model)
    body, texts = await read_request(exchange, exchange.service.settings.max_client_batch_size)
    bind_model(exchange, chosen, model, body.parameters.backend)
    check_expected(exchange)
    return await _infer(exchange, body, texts)


async def _infer(exchange: ApiExchange, body: InferRequest, texts: Sequence[Input]) -> Response:
    chosen, caller, given = exchange.model, caller_of(exchange), body.parameters
    inference = chosen.inference
    plan, selection = vector_plan(body, inference), map_selection(body, inference)
    if given.timeout is not None:
        finish_by = min(caller.finish_by, exchange.received + given.timeout / 1e6)
        caller = dataclasses.replace(caller, finish_by=finish_by)
    lane: LaneName = "attention" if "attention" in body.wanted else "encode"
    tokenizing = plan.limited(given.options) if plan else given.options
    prepared = await inference.prepare(texts, tokenizing, caller, lane, given.backend)
    names: dict[str, object] = {"model_name": chosen.name, "model_version": chosen.version}
    if body.id is not None:
        names = {"id": body.id, **names}
    if counts := prepared.timings.warnings.counts():
        names["parameters"] = counts
    answering = Answering(inference, prepared, names, plan, selection)
    planned = {name: answering.planned(name, binary=own) for name, own in body.wanted.items()}
    maps, outputs = planned.pop("attention", None), [*planned.values()]
    if maps and selection:
        return await _with_maps(exchange, answering, outputs, maps, selection)
    return await _without_maps(exchange, answering, outputs)


async def _without_maps(
    exchange: ApiExchange, answering: Answering, outputs: Sequence[Output]
) -> Response:
    reserve(exchange, sum(output.size for output in outputs))
    filled, timings = await answering.filled(outputs), answering.prepared.timings
    pieces = head(answering.names, filled)
    if not any(output.binary for output in filled):
        return PartsResponse([pieces], JSON, timings)
    json = [part async for part in exchange.service.turns.written(pieces)]
    response = PartsResponse([*json, *tails(filled)], OCTETS, timings)
    response.headers[LENGTH_HEADER] = str(sum(map(len, json)))
    return response


async def _with_maps(
    exchange: ApiExchange,
    answering: Answering,
    outputs: Sequence[Output],
    maps: Output,
    selection: AttentionSelection,
) -> Response:
    if not maps.binary and any(output.binary for output in outputs):
        raise Unprocessable("attention is requested in JSON: other outputs cannot be binary then")
    size = sum(output.size for output in [*outputs, maps])
    check_size(exchange, size, FEWER_MAPS)
    writer = MapsWriter(answering.names, outputs, maps, keeps_back=answering.plan is not None)
    stream = answering.inference.attention(answering.prepared, selection, writer.dump)

    async def compute_vectors() -> None:
        writer.outputs = await answering.filled(outputs)

    response = await stream_reply(exchange, stream, writer, size, compute_vectors)
    if writer.json_length is not None:
        response.headers[LENGTH_HEADER] = str(writer.json_length)
    return response
