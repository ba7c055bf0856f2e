"""`POST /v2/models/{model}/infer`: vectors and attention of texts, as named tensors."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from service.api.kserve.attention import MapsWriter
from service.api.kserve.errors import ERRORS
from service.api.kserve.inputs import LENGTH_HEADER, InferInputs, read_request
from service.api.kserve.models import MODEL, VERSIONED, model_of_path
from service.api.kserve.outputs import (
    HEAD_VECTORS,
    Output,
    OutputName,
    head,
    tails,
    text_values,
)
from service.api.kserve.parameters import map_selection, vector_options
from service.api.kserve.schema import InferRequest, inlined
from service.api.native.attention.maps import (
    FEWER_MAPS,
    stream_reply,
)
from service.api.native.vector_outputs import vector_tensors, within_limits
from service.api.wire.media import JSON, OCTETS, Part, Unwritten
from service.api.wire.reply_headers import with_reply_headers
from service.api.wire.reserved import INLINE_BYTES, check_size, reserve
from service.api.wire.route import (
    PartsResponse,
    answered,
    caller_of,
    context_of,
    model_of,
    service_of,
)
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.attention.selection import AttentionSelection
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.head_vectors import HeadVectors, token_features
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.lanes import LaneName

PREDICTED_SHARE = 8
"""Words of the vocabulary for each word that a sparse encoder's vector is predicted to have."""
_BODY: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": inlined(InferRequest.model_json_schema())},
            OCTETS: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}

router = APIRouter(tags=["kserve"])


@dataclasses.dataclass(frozen=True)
class Answering:
    """Inference request with tokenised texts, ready to compute."""

    inference: Inference
    prepared: PreparedTexts
    names: dict[str, object]
    """Fields of the reply before its outputs."""
    options: EncodeOptions | None
    """Options of the vectors; None if no vectors are requested."""
    selection: AttentionSelection | None
    """Selection of maps; None if no maps are requested."""

    def planned(self, name: OutputName, *, binary: bool) -> Output:
        """Return an output, with values only if the tokens alone determine them."""
        texts = self.prepared.texts
        lengths = [len(text.input_ids) for text in texts]
        maps = (0, 0)
        if self.selection:
            layers, heads = self.selection.maps["encoder"]
            maps = (len(layers), len(heads))
        if name == "attention":
            size = math.prod(maps) * sum(length**2 for length in lengths)
            return Output(name, (size,), binary)
        if name == "embeddings":
            return Output(name, (sum(lengths), self.inference.config.hidden_size), binary)
        if name == "pooled" and self.options:
            options = self.options
            kept = self.inference.vectors.kept(options.pooling, options.dimensions)
            return Output(name, (len(texts), kept), binary)
        if name == "attention_shapes":
            shapes = np.array([[*maps, length, length] for length in lengths], np.int32)
            return Output(name, shapes.shape, binary, shapes)
        if name in HEAD_VECTORS and self.options and self.options.head:
            return Output(name, _predicted(name, texts, self.options.head), binary)
        values = text_values(name, texts)
        shape = (len(values),) if isinstance(values, list) else values.shape
        return Output(name, shape, binary, values)

    async def filled(self, outputs: Sequence[Output]) -> list[Output]:
        """Compute the vectors, and return the outputs with their values."""
        if self.options is None:
            return [*outputs]
        encodings = await self.inference.encode(self.prepared, self.options)

        def fill() -> list[Output]:
            tensors = vector_tensors(encodings)
            return [filled(output, encodings, tensors) for output in outputs]

        return fill() if total(outputs) <= INLINE_BYTES else await asyncio.to_thread(fill)


@router.post(
    MODEL + "/infer",
    response_model=None,
    responses=with_reply_headers(ERRORS),
    openapi_extra=_BODY,
)
@router.post(VERSIONED + "/infer", include_in_schema=False)
async def infer(request: Request, model: str) -> Response:
    """Compute vectors and attention of texts, and return the requested tensors by name."""
    chosen = await model_of_path(request, model)
    asked = await read_request(request, service_of(request).settings.max_client_batch_size)
    engine = asked.request.parameters.backend
    return await answered(request, chosen, model, lambda: _infer(request, asked), engine)


async def _infer(request: Request, asked: InferInputs) -> Response:
    chosen, caller = model_of(request), caller_of(request)
    body, given, inference = asked.request, asked.request.parameters, chosen.inference
    options, selection = vector_options(body, inference), map_selection(body, inference)
    if given.timeout is not None:
        finish_by = min(caller.finish_by, context_of(request).received + given.timeout / 1e6)
        caller = dataclasses.replace(caller, finish_by=finish_by)
    lane: LaneName = "attention" if "attention" in body.wanted else "encode"
    tokenizing = within_limits(given.options, options.head if options else None)
    prepared = await inference.prepare(asked.texts, tokenizing, caller, lane, given.backend)
    names: dict[str, object] = {"model_name": chosen.name, "model_version": chosen.version}
    if body.id is not None:
        names = {"id": body.id, **names}
    if counts := prepared.timings.warnings.counts():
        names["parameters"] = counts
    answering = Answering(inference, prepared, names, options, selection)
    maps, outputs = None, []
    for name, binary in body.wanted.items():
        output = answering.planned(name, binary=binary)
        if name == "attention":
            maps = output
        else:
            outputs.append(output)
    if maps and selection:
        return await _with_maps(request, answering, outputs, maps, selection)
    return await _without_maps(request, answering, outputs)


async def _without_maps(
    request: Request, answering: Answering, outputs: Sequence[Output]
) -> Response:
    size = total(outputs)
    with reserve(request, size) as reserved:
        filled = await answering.filled(outputs)
        pieces, length = head(answering.names, filled), None
        body: list[Part | Unwritten] = [pieces]
        if binary := any(output.binary for output in filled):
            json = [part async for part in service_of(request).turns.written(pieces)]
            body, length = [*json, *tails(filled)], sum(map(len, json))
        timings = answering.prepared.timings
        response = reserved.response(body, OCTETS if binary else JSON, timings)
    return _with_json_length(response, length)


async def _with_maps(
    request: Request,
    answering: Answering,
    outputs: Sequence[Output],
    maps: Output,
    selection: AttentionSelection,
) -> Response:
    if not maps.binary and any(output.binary for output in outputs):
        raise Unprocessable("attention is requested in JSON: other outputs cannot be binary then")
    size = total([*outputs, maps])
    check_size(size, service_of(request).settings.max_response_bytes, FEWER_MAPS, binary=True)
    writer = MapsWriter(answering.names, outputs, maps, keeps_back=answering.options is not None)
    stream = answering.inference.attention(answering.prepared, selection, writer.dump)

    async def compute_vectors() -> None:
        writer.outputs = await answering.filled(outputs)

    reply = await stream_reply(request, stream, writer, size, compute_vectors)
    return _with_json_length(PartsResponse(reply), writer.json_length)


def _with_json_length(response: Response, json_length: int | None) -> Response:
    if json_length is not None:
        response.headers[LENGTH_HEADER] = str(json_length)
    return response


def total(outputs: Sequence[Output]) -> int:
    """Predict the bytes of outputs in a reply."""
    return sum(output.size for output in outputs)


def _predicted(
    name: OutputName, texts: Sequence[TokenizedText], vectors: HeadVectors
) -> tuple[int, ...]:
    """Return the predicted shape of an output of a task head, whose values are not known yet."""
    if name.endswith("cu_seqlens"):
        return (len(texts) + 1,)
    tokens, task = sum(len(vectors.input_ids(text)) for text in texts), vectors.task
    if name == "multivector":
        return tokens, token_features(task)
    return (len(texts) * task.outputs // PREDICTED_SHARE if task.kind == "sparse" else tokens,)


def filled(
    output: Output,
    encodings: Sequence[TextEncoding],
    tensors: Mapping[str, NDArray[np.generic]],
) -> Output:
    """Return an output of vectors with values from the encodings, other outputs unchanged.

    Args:
        output: planned output.
        encodings: vectors of each text.
        tensors: vectors of a task head by the names of outputs.

    """
    if (values := tensors.get(output.name)) is not None:
        return dataclasses.replace(output, values=values, shape=values.shape)
    if output.name == "pooled":
        pooled = _given(text.pooled for text in encodings)
        return dataclasses.replace(output, values=np.stack(pooled))
    if output.name == "embeddings":
        tokens = _given(text.tokens for text in encodings)
        return dataclasses.replace(output, values=np.concatenate(tokens))
    return output


def _given(arrays: Iterable[Floats | None]) -> list[Floats]:
    return [array for array in arrays if array is not None]
