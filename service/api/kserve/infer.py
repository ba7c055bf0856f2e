"""`POST /v2/models/{model}/infer`: vectors and attention of texts, as named tensors.

Format: https://github.com/kserve/open-inference-protocol and KServe's "Binary Tensor Data
Extension": JSON, followed by the bytes of tensors. The parameters carry the options of /encode and
/attention.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema
from starlette.responses import Response

from model.numerics.pooling import PoolingName
from service.api.kserve.models import ERRORS, MODEL, VERSIONED, model_of_path
from service.api.kserve.outputs import (
    ATTENTION,
    INPUT,
    LAYERED,
    OUTPUT_OF,
    TENSORS,
    Output,
    TensorName,
    head,
    tails,
    text_values,
    value_pieces,
)
from service.api.native.attention.maps import FEWER_MAPS, stream_reply
from service.api.native.attention.selection import AttentionRequest, attention_selection
from service.api.native.attention.writers import Writer
from service.api.native.encode_request import EncodeRequest, encode_options
from service.api.native.texts import INDEX_LIST, BackendName, Indices
from service.api.requests import StrictRequest
from service.api.wire.bodies import (
    INLINE_BODY_BYTES,
    VALUE_BYTES,
    WIDEST_BYTES,
    checked_media_type,
    read_json,
)
from service.api.wire.json_pieces import as_bytes
from service.api.wire.media import JSON, OCTETS, Part, Unwritten
from service.api.wire.replies import with_reply_headers
from service.api.wire.route import INLINE_BYTES, ApiExchange, PartsResponse, validated
from service.api.wire.schemas import any_of, documented_body, schema
from service.engines.contract import Floats
from service.errors import InvalidRequest, Unprocessable
from service.inference.attention.maps import NO_MAPS, AttentionSelection, LayerMaps
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.field import joined
from service.inference.plan import Plan
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.text import Text
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction
from service.scheduler.lanes import LaneName

_NUMBERS = r"^ *-?[0-9]{1,9}( *, *-?[0-9]{1,9})* *$"


def _listed(value: object) -> object:
    """Convert `2` and `"0,2"` to a list: some clients send parameters as numbers or strings."""
    if isinstance(value, str) and re.fullmatch(_NUMBERS, value):
        return [int(number) for number in value.split(",")]
    return [value] if type(value) is int else value


ListedIndices = Annotated[
    Indices,
    BeforeValidator(_listed),
    WithJsonSchema(any_of(INDEX_LIST, int, schema(str, pattern=_NUMBERS))),
]


class InputParameters(StrictRequest):
    """Encoding of an input."""

    binary_data_size: int | None = Field(None, ge=0, description="Bytes of it after the JSON.")
    content_type: Literal["str"] | None = Field(None, description="Sent by clients of MLServer.")


class InputTensor(StrictRequest):
    """Texts of shape `[B]` or `[B, 1]`, or pairs of shape `[B, 2]`."""

    name: Literal["text"]
    datatype: Literal["BYTES"]
    shape: Annotated[
        list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(min_length=1, max_length=2)
    ]
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = Field(None, description="Values in row-major order, flat or nested.")


class OutputParameters(StrictRequest):
    """Encoding of an output."""

    binary_data: bool | None = Field(None, description="After the JSON, or in the JSON.")


class RequestedOutput(StrictRequest):
    """Requested output, by its name."""

    name: TensorName
    parameters: OutputParameters = OutputParameters()


class InferParameters(StrictRequest):
    """Options of /encode and /attention, and parameters of the protocol."""

    binary_data_output: bool = Field(False, description="Default `binary_data` of the outputs.")
    timeout: int | None = Field(None, ge=0, description="Microseconds until the reply must begin.")
    truncate: bool = Field(False, description="Truncate long texts.")
    truncation_direction: Direction = Field("right", description="Side to cut.")
    prompt_name: str | None = Field(None, description="Name of a prompt of the checkpoint.")
    backend: BackendName | None = Field(None, description="Engine that computes the reply.")
    layer: int = Field(-1, description="Hidden state of `pooled` and `embeddings`.")
    pooling: PoolingName | None = Field(None, description="The checkpoint's default.")
    normalize: bool | None = Field(None, description="The checkpoint's default.")
    dimensions: int | None = Field(None, ge=1, description="Number of leading features to keep.")
    layers: ListedIndices | None = Field(None, description="Layers of `attention`; all by default.")
    heads: ListedIndices | None = Field(None, description="Heads of `attention`; all by default.")

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        naming = f"{INPUT}[{{}}]"
        return Options(self.truncate, self.truncation_direction, self.prompt_name, naming=naming)


class InferRequest(StrictRequest):
    """JSON body of an inference request."""

    id: str | None = Field(None, max_length=1024)
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=16)] = Field(
        default=[], description="`pooled` by default."
    )
    parameters: InferParameters = InferParameters()

    @property
    def wanted(self) -> dict[str, bool]:
        """Requested outputs, and whether each is binary."""
        default = self.parameters.binary_data_output
        asked = {
            output.name: default if output.parameters.binary_data is None
            else output.parameters.binary_data
            for output in self.outputs
        }  # fmt: skip
        if len(asked) != len(self.outputs):
            raise Unprocessable("outputs: one is listed twice")
        return asked or {"pooled": default}


LENGTH_HEADER = "inference-header-content-length"
LENGTH_BYTES = 4
"""Bytes of the length prefix of each element in a binary BYTES tensor."""
MEDIA_TYPES = ("", "application/json", "application/octet-stream")
"""Accepted content types; a page of another origin cannot send the last two without preflight."""
_DIGITS = re.compile(rb"[0-9]{1,10}")


async def read_request(
    exchange: ApiExchange, max_rows: int
) -> tuple[InferRequest, Sequence[Input]]:
    """Read and parse the body of an inference request, and return it with its texts."""
    checked_media_type(exchange.headers, MEDIA_TYPES)
    body = exchange.take_body()
    length = json_length(exchange.headers.get(LENGTH_HEADER.encode()), len(body))
    content = await read_json(body[:length], exchange.reservation)
    asked = validated(InferRequest, content)
    tensor, tail = asked.inputs[0], memoryview(body)[length:]
    if tensor.shape[0] > max_rows:
        raise Unprocessable(f"{tensor.shape[0]} texts in one request; at most {max_rows} are taken")
    elements = min(math.prod(tensor.shape), len(tail) // LENGTH_BYTES)
    elements_bytes = WIDEST_BYTES * len(tail) + VALUE_BYTES * elements
    exchange.reservation.grow(elements_bytes)
    if len(body) <= INLINE_BODY_BYTES:
        return asked, texts_of(tensor, tail)
    return asked, await asyncio.to_thread(texts_of, tensor, tail)


def json_length(said: bytes | None, size: int) -> int:
    """Return the bytes of a body's JSON by its header; without a header, the whole body."""
    if said is None:
        return size
    if not _DIGITS.fullmatch(said) or not 0 < int(said) <= size:
        raise InvalidRequest(
            f"{LENGTH_HEADER} must be the bytes of the JSON before the tensors, 1 … {size}"
        )
    return int(said)


def texts_of(tensor: InputTensor, tail: memoryview) -> list[Input]:
    """Return the texts of a tensor `[B]` or `[B, 1]`, or its pairs of texts `[B, 2]`."""
    if tensor.shape[1:] not in ([], [1], [2]):
        raise Unprocessable(f"{INPUT}: the shape must be [B], [B, 1], or [B, 2] for pairs")
    size = tensor.parameters.binary_data_size
    if (size is None) == (tensor.data is None):
        raise InvalidRequest(f"{INPUT}: either `data` or `binary_data_size` is needed")
    if len(tail) != (size or 0):
        raise InvalidRequest(
            f"{INPUT} has {size or 0} bytes by its binary_data_size; {len(tail)} follow the JSON"
        )
    if tensor.data is None:
        values = elements(tail, math.prod(tensor.shape))
    else:
        values = flattened(tensor.data, tensor.shape)
    if tensor.shape[1:] == [2]:
        return list(zip(values[::2], values[1::2], strict=True))
    return list(values)


def elements(data: memoryview, count: int) -> list[str]:
    """Decode the elements of a binary BYTES tensor, each prefixed with its length."""
    texts: list[str] = []
    end = 0
    for index in range(count):
        start = end + LENGTH_BYTES
        end = start + int.from_bytes(data[end:start], "little")
        if start > len(data) or end > len(data):
            raise InvalidRequest(f"{INPUT} ends within element {index} of {count}")
        try:
            texts.append(str(data[start:end], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidRequest(f"{INPUT}[{index}] is not UTF-8") from None
    if end != len(data):
        raise InvalidRequest(f"{INPUT} has {len(data) - end} bytes more than its {count} elements")
    return texts


def flattened(data: Sequence[Any], shape: Sequence[int]) -> list[str]:
    """Flatten the texts of a JSON tensor in row-major order, from a flat or nested list."""
    rows, width = shape[0], math.prod(shape[1:])
    if len(data) == rows and all(isinstance(row, list) and len(row) == width for row in data):
        data = [value for row in data for value in row] if shape[1:] else data
    if len(data) != rows * width:
        raise InvalidRequest(f"{INPUT} has {len(data)} values in `data`, not {rows * width}")
    if not all(isinstance(value, str) for value in data):
        raise InvalidRequest(f"{INPUT}: every value in `data` must be a text")
    return list(data)


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


class MapsWriter(Writer):
    """Writer that puts the maps last: at the end of the JSON, or of the binary data after it.

    `attention_shapes` marks the end of a text's maps.
    """

    def __init__(self, maps: Output, media_type: str, *, keeps_back: bool) -> None:
        """Write nothing yet."""
        self.media_type, self.keeps_back = media_type, keeps_back
        self.before: Sequence[Part] = ()
        """All parts before the maps."""
        self._binary = maps.binary
        self._separator: Sequence[Part] = ()

    def dump(self, weights: Floats) -> Floats:
        """Return the weights, contiguous for binary data."""
        return np.ascontiguousarray(weights) if self._binary else weights

    def start(self) -> Sequence[Part]:
        """Return all parts before the maps."""
        return self.before

    def layer(self, maps: LayerMaps) -> Sequence[Part | Unwritten]:
        """Return the maps of a layer."""
        weights = maps.arrays["attention"]
        if self._binary:
            return [as_bytes(weights)]
        separator, self._separator = self._separator, [b","]
        return [chain(separator, value_pieces(weights))]

    def end(self) -> list[Part]:
        """Return the end of the JSON, if the JSON holds the maps."""
        return [] if self._binary else [b"]}]}"]


def planned(
    wanted: Mapping[str, bool],
    texts: Sequence[Text],
    plan: Plan | None,
    selection: AttentionSelection | None,
) -> dict[str, Output]:
    """Return the requested outputs, with values only if the tokens alone determine them."""
    layers, heads = selection.maps["encoder"] if selection else NO_MAPS
    maps = np.array([[len(layers), len(heads), text.size, text.size] for text in texts], np.int32)
    outputs: dict[str, Output] = {}
    for name, binary in wanted.items():
        if name == "attention":
            shape = (int(maps.prod(axis=1, dtype=np.int64).sum()),)
            outputs[name] = Output(name, shape, binary)
        elif plan and name in OUTPUT_OF:
            own = next(own for own in plan.outputs if isinstance(own, OUTPUT_OF[name]))
            outputs[name] = Output(name, own.shape(TENSORS[name], texts), binary)
        else:
            values = maps if name == "attention_shapes" else text_values(name, texts)
            outputs[name] = Output(name, np.shape(values), binary, values)
    return outputs


async def with_vectors(
    outputs: Sequence[Output], inference: Inference, prepared: PreparedTexts, plan: Plan | None
) -> Sequence[Output]:
    """Compute the vectors, and return the outputs with their values."""
    if plan is None:
        return outputs
    arrays = await inference.encode(prepared, plan)

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


_BINARY = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
_BODY = documented_body(InferRequest, **_BINARY)
_BODY["requestBody"]["required"] = True
router = APIRouter(tags=["kserve"])


@router.post(MODEL + "/infer", responses=with_reply_headers(ERRORS), openapi_extra=_BODY)
@router.post(VERSIONED + "/infer", include_in_schema=False)
async def infer(exchange: ApiExchange, model: str) -> Response:
    """Compute vectors and attention of texts, and return the requested tensors by name."""
    chosen = await model_of_path(exchange, model)
    body, inputs = await read_request(exchange, exchange.service.settings.max_client_batch_size)
    exchange.bind_model(chosen, model, body.parameters.backend)
    exchange.check_expected()
    caller, given = exchange.call(), body.parameters
    inference = chosen.inference
    plan, selection = vector_plan(body, inference), map_selection(body, inference)
    if given.timeout is not None:
        finish_by = min(caller.finish_by, exchange.received + given.timeout / 1e6)
        caller = dataclasses.replace(caller, finish_by=finish_by)
    lane: LaneName = "attention" if "attention" in body.wanted else "encode"
    tokenizing = plan.limited(given.options) if plan else given.options
    prepared = await inference.prepare(inputs, tokenizing, caller, lane, given.backend)
    names: dict[str, object] = {"model_name": chosen.name, "model_version": chosen.version}
    if body.id is not None:
        names = {"id": body.id, **names}
    if counts := prepared.timings.warnings.counts():
        names["parameters"] = counts
    outputs = planned(body.wanted, prepared.texts, plan, selection)
    maps = outputs.pop("attention", None)
    after = [maps] if maps else []
    vectors, binary = [*outputs.values()], any(output.binary for output in outputs.values())
    if maps and binary and not maps.binary:
        raise Unprocessable("attention is requested in JSON: other outputs cannot be binary then")
    json_length, media_type = 0, OCTETS if binary or (maps and maps.binary) else JSON
    size = sum(output.size for output in [*vectors, *after])

    async def before_maps() -> list[Part]:
        """Return the JSON, up to the maps if it holds them, and the binary data before them."""
        nonlocal json_length
        filled = await with_vectors(vectors, inference, prepared, plan)
        pieces = head(names, [*filled, *after])
        json = [part async for part in exchange.service.turns.written(pieces)]
        json_length = sum(map(len, json))
        return [*json, *tails(filled)]

    if maps is None or selection is None:
        exchange.reserve(size)
        response = PartsResponse(await before_maps(), media_type, prepared.timings)
    else:
        exchange.check_size(size, FEWER_MAPS)
        writer = MapsWriter(maps, media_type, keeps_back=plan is not None)

        async def begin() -> None:
            writer.before = await before_maps()
            if maps.binary:
                writer.length = sum(map(len, writer.before)) + maps.nbytes

        stream = inference.attention(prepared, selection, writer.dump)
        response = await stream_reply(exchange, stream, writer, size, begin)
    if media_type == OCTETS:
        response.headers[LENGTH_HEADER] = str(json_length)
    return response
