"""The body of an inference request: JSON, and the bytes of a tensor after it.

Format: https://github.com/kserve/open-inference-protocol and KServe's "Binary Tensor Data
Extension".
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request

from service.api.kserve.outputs import INPUT
from service.api.kserve.schema import InferRequest, InputTensor
from service.api.wire.route import body_of
from service.api.wire.strict_json import INLINE_BYTES, VALUE_BYTES, WIDEST_BYTES, read_json
from service.errors import InvalidRequest, Unprocessable, UnsupportedMediaType
from service.inference.tokenization.inputs import Input

LENGTH_HEADER = "inference-header-content-length"
LENGTH_BYTES = 4
"""Of the length before each element of a binary BYTES tensor."""
MEDIA_TYPES = ("", "application/json", "application/octet-stream")
"""Those of clients; a page of another origin can send none of the latter two unasked."""
_DIGITS = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class InferInputs:
    """A request, read."""

    request: InferRequest
    texts: list[Input]


async def read_request(request: Request, max_rows: int) -> InferInputs:
    """A request's body.

    Args:
        request: of an inference.
        max_rows: texts, or pairs of them, that are taken.

    Raises:
        UnsupportedMediaType: the body is said to be something else.
        InvalidRequest: the body is not what its header and its JSON say.
        RequestValidationError: the JSON is not that of a request.
        Unprocessable: there are too many texts.

    """
    check_media_type(request)
    body = await body_of(request)
    length = json_length(request.headers.get(LENGTH_HEADER), len(body))
    content = await read_json(body[:length], request.state.reservation)
    try:
        asked = InferRequest.model_validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**item, "loc": ("body", *item["loc"])} for item in found]
        ) from None
    tensor, tail = asked.inputs[0], memoryview(body)[length:]
    if tensor.shape[0] > max_rows:
        raise Unprocessable(f"{tensor.shape[0]} texts in one request; at most {max_rows} are taken")
    elements_bytes = WIDEST_BYTES * len(tail) + VALUE_BYTES * math.prod(tensor.shape)
    request.state.reservation.grow(elements_bytes)
    if len(body) <= INLINE_BYTES:
        return InferInputs(asked, texts_of(tensor, tail))
    return InferInputs(asked, await asyncio.to_thread(texts_of, tensor, tail))


def check_media_type(request: Request) -> None:
    """Refuse a body that is said to be neither JSON nor bytes, or compressed.

    Raises:
        UnsupportedMediaType: it is.

    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in MEDIA_TYPES:
        raise UnsupportedMediaType(f"the content type must be {' or '.join(MEDIA_TYPES[1:])}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("compressed bodies are not taken")


def json_length(said: str | None, size: int) -> int:
    """Bytes of a body's JSON, by the header; all of them without.

    Raises:
        InvalidRequest: the header is no number, or says more than there is.

    """
    if said is None:
        return size
    if not _DIGITS.fullmatch(said) or not 0 < int(said) <= size:
        raise InvalidRequest(
            f"{LENGTH_HEADER} must be the bytes of the JSON before the tensors, 1 … {size}"
        )
    return int(said)


def texts_of(tensor: InputTensor, tail: memoryview) -> list[Input]:
    """The texts of a tensor, or pairs of them.

    Args:
        tensor: as the JSON describes it.
        tail: the bytes after the JSON, which are all its own.

    Raises:
        InvalidRequest: its values are not what its shape says, or no UTF-8.

    """
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
    """The elements of a binary BYTES tensor, each after its length.

    Raises:
        InvalidRequest: there are fewer or more bytes than the lengths say, or no UTF-8.

    """
    found: list[str] = []
    end = 0
    for index in range(count):
        start = end + LENGTH_BYTES
        end = start + int.from_bytes(data[end:start], "little")
        if start > len(data) or end > len(data):
            raise InvalidRequest(f"{INPUT} ends within element {index} of {count}")
        try:
            found.append(str(data[start:end], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidRequest(f"{INPUT}[{index}] is not UTF-8") from None
    if end != len(data):
        raise InvalidRequest(f"{INPUT} has {len(data) - end} bytes more than its {count} elements")
    return found


def flattened(data: Sequence[Any], shape: Sequence[int]) -> list[str]:
    """Texts of JSON, row-major, from a list that is flat or nested as the shape is.

    Raises:
        InvalidRequest: the list has another shape, or something in it is no text.

    """
    rows, width = shape[0], math.prod(shape[1:])
    if len(data) == rows and all(isinstance(row, list) and len(row) == width for row in data):
        data = [value for row in data for value in row] if shape[1:] else data
    if len(data) != rows * width:
        raise InvalidRequest(f"{INPUT} has {len(data)} values in `data`, not {rows * width}")
    if not all(isinstance(value, str) for value in data):
        raise InvalidRequest(f"{INPUT}: every value in `data` must be a text")
    return list(data)
