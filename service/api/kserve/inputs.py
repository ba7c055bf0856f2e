"""Inference requests: the schema of their JSON, followed by the bytes of a tensor.

Format: https://github.com/kserve/open-inference-protocol and KServe's "Binary Tensor Data
Extension"; its parameters carry the options of /encode and /attention.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from model.numerics.pooling import PoolingName
from service.api.kserve.outputs import INPUT, TensorName
from service.api.native.indices import INDEX_LIST, Indices
from service.api.native.texts import BackendName, StrictRequest
from service.api.wire.bodies import (
    INLINE_BODY_BYTES,
    VALUE_BYTES,
    WIDEST_BYTES,
    checked_media_type,
    read_json,
)
from service.api.wire.route import ApiExchange, validated
from service.api.wire.schemas import any_of, schema
from service.errors import InvalidRequest, Unprocessable
from service.inference.tokenization.inputs import Input
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction

_NUMBERS = r"^ *-?[0-9]{1,9}( *, *-?[0-9]{1,9})* *$"


def _listed(value: object) -> object:
    """Convert `2` and `"0,2"` to a list: some clients send parameters as numbers or strings."""
    if isinstance(value, str) and re.fullmatch(_NUMBERS, value):
        return [int(number) for number in value.split(",")]
    return [value] if type(value) is int else value


ListedIndices = Annotated[
    Indices,
    BeforeValidator(_listed),
    WithJsonSchema(any_of(INDEX_LIST, int, schema(str, pattern=_NUMBERS), None)),
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
    layers: ListedIndices = Field(None, description="Layers of `attention`; all by default.")
    heads: ListedIndices = Field(None, description="Heads of `attention`; all by default.")

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
