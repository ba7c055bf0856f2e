"""Pictures of a request: base64, data URLs, and the files that they stand for."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from pydantic_core import PydanticCustomError

from service.api.wire.route import context_of, service_of
from service.errors import Unprocessable
from service.inference.tokenization.inputs import Input, Picture

ELEMENT_FIELDS = ("text", "image", "image_url")
"""Fields of an object among the inputs, which has exactly one of them."""
FIRST_FRAME = "first_frame"
ONE_FIELD = (
    "give an object with exactly one of `text`, `image` and `image_url`, and `first_frame` beside "
    "a picture if the file may be animated"
)
INLINE_CHARACTERS = 2**16
"""Maximum characters of base64 in a request that are decoded on the event loop, in 0.3 ms; more
are decoded in a thread."""
SLICE_CHARACTERS = 2**18
"""Characters that are decoded at a time, as each call holds Python's global lock: 1 ms."""
_DATA_URL = re.compile(
    r"data:image/[a-z0-9.+-]{1,40}(?:;[a-z0-9=._-]{1,80})?;base64,", re.IGNORECASE
)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPicture(Picture):
    """Picture of a request whose file is still to be decoded; its `data` is empty until then."""

    field: str
    """Field of the request, for error messages: `inputs[3].image`."""
    source: str
    """File in base64, possibly as a data URL."""


def picture(value: object, field: str, *, first_frame: bool = False) -> GivenPicture:
    """Return the picture of a field with base64 or a data URL.

    Raises:
        PydanticCustomError: the value is neither; the base64 itself is checked when it is decoded.

    """
    if not isinstance(value, str) or not value:
        raise _wrong(f"{field}: base64 of a picture's file, or a data URL, is needed")
    if _ADDRESS.match(value):
        raise _wrong(f"{field} is an address: send addresses as `image_url`")
    return GivenPicture(b"", first_frame, field=field, source=value)


def picture_at(value: object, field: str, *, first_frame: bool = False) -> GivenPicture:
    """Return the picture at a URL.

    Raises:
        PydanticCustomError: the value is not a data URL.

    """
    if isinstance(value, str) and value[:5].lower() == "data:":
        return GivenPicture(b"", first_frame, field=field, source=value)
    raise _wrong(f"{field}: a data URL is needed, such as data:image/png;base64,…")


def element(value: dict[str, object], field: str) -> Input:
    """Return the text or picture of an object among the inputs.

    Args:
        value: object of the request.
        field: place of the object in the request: `inputs[3]`.

    Raises:
        PydanticCustomError: the object is neither `{"text": …}`, `{"image": …}` nor
            `{"image_url": …}`.

    """
    first_frame = value.get(FIRST_FRAME, False)
    names = value.keys() - {FIRST_FRAME}
    if len(names) != 1 or not names <= {*ELEMENT_FIELDS}:
        raise _wrong(f"{field} is neither a text nor a picture: {ONE_FIELD}")
    (name,) = names
    content = value[name]
    if name == "text":
        if not isinstance(content, str) or FIRST_FRAME in value:
            raise _wrong(f"{field}.text: a text is needed, without `first_frame`")
        return content
    if not isinstance(first_frame, bool):
        raise _wrong(f"{field}.first_frame: true or false is needed")
    read = picture if name == "image" else picture_at
    return read(content, f"{field}.{name}", first_frame=first_frame)


async def loaded(inputs: list[Input], request: Request) -> list[Input]:
    """Return inputs whose pictures have their files; the same list if there are none to decode.

    Args:
        inputs: inputs of a request, as its schema returned them.
        request: HTTP request, whose reservation grows by the files.

    Raises:
        Unprocessable: there are too many inputs, a picture is not in base64, or its file exceeds
            `--max-image-bytes`.
        Overloaded: there is not enough memory.

    """
    if not any(isinstance(given, Picture) for given in inputs):
        return inputs
    settings = service_of(request).settings
    if len(inputs) > settings.max_client_batch_size:
        raise Unprocessable(
            f"{len(inputs)} inputs in one request; at most {settings.max_client_batch_size} are "
            "taken"
        )
    most = settings.max_image_bytes
    for index, given in enumerate(inputs):
        if isinstance(given, Picture) and len(given.data) > most:
            raise Unprocessable(_too_large(f"inputs[{index}]", most))
    sizes = [len(given.source) for given in inputs if isinstance(given, GivenPicture)]
    context_of(request).reservation.grow(sum(sizes) * 3 // 4)
    if sum(sizes) <= INLINE_CHARACTERS:
        return _decoded(inputs, most)
    return await asyncio.to_thread(_decoded, inputs, most)


def _decoded(inputs: Sequence[Input], max_bytes: int) -> list[Input]:
    return [
        Picture(_file(given, max_bytes), given.first_frame)
        if isinstance(given, GivenPicture)
        else given
        for given in inputs
    ]


def _file(given: GivenPicture, max_bytes: int) -> bytes:
    """Return the file of a picture in base64.

    Raises:
        Unprocessable: the picture is not in base64, or too large.

    """
    text, start = given.source, 0
    if text[:5].lower() == "data:":
        head = _DATA_URL.match(text)
        if head is None:
            raise Unprocessable(
                f"{given.field} is not a data URL of a picture in base64: begin it with "
                "data:image/png;base64, or its own type"
            )
        start = head.end()
    if 3 * (len(text) - start) // 4 - 2 > max_bytes:
        raise Unprocessable(_too_large(given.field, max_bytes))
    try:
        data = b"".join(
            _slice(text[at : at + SLICE_CHARACTERS], last=at + SLICE_CHARACTERS >= len(text))
            for at in range(start, len(text), SLICE_CHARACTERS)
        )
    except ValueError:  # of which binascii.Error is a subclass
        raise Unprocessable(
            f"{given.field} is not base64: use the alphabet with + and /, padding, and no line "
            "breaks"
        ) from None
    if not data:
        raise Unprocessable(f"{given.field} is empty: send the file of a picture")
    if len(data) > max_bytes:
        raise Unprocessable(_too_large(given.field, max_bytes))
    return data


def _slice(text: str, *, last: bool) -> bytes:
    if not last and text.endswith("="):
        raise ValueError("padding before the end")
    return binascii.a2b_base64(text, strict_mode=True)


def _too_large(field: str, max_bytes: int) -> str:
    return f"{field} has more than {max_bytes} bytes (--max-image-bytes): send a smaller picture"


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("inputs", "{problem}", {"problem": message})
