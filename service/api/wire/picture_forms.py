"""Requests whose body is the files themselves: a form, or a single picture.

The values of all other fields are JSON: `"cls"`, with quotes, is a text. python-multipart, of the
extra `images`, reads forms (RFC 7578); all files stay in memory.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from service.api.wire.media import FORM, IMAGE, JSON
from service.api.wire.problems import field_name
from service.api.wire.strict_json import INLINE_BODY_BYTES, check_encoding, read_json
from service.errors import InvalidRequest, Unprocessable, UnsupportedMediaType
from service.inference.tokenization.inputs import Picture
from service.system.budget import Reservation

INPUTS, WHOLE, FIRST_FRAME = "inputs", "request", "first_frame"
"""Fields of a form: an input, an object with all other fields, and an option of all files."""
MEDIA_TYPES = (JSON, FORM, f"{IMAGE}*")
"""Media types of a request that may have pictures."""
_OPTION = {"description": "Any other field of the request, as JSON: a text has quotes."}
OPENAPI = {
    "requestBody": {
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {
                        INPUTS: {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "description": "A file of a picture each; or any input, as JSON, in a "
                            "part without a file name.",
                        },
                        WHOLE: {
                            "type": "object",
                            "description": "All other fields, in place of a part for each.",
                        },
                        FIRST_FRAME: {
                            "type": "boolean",
                            "description": "Take the first frame of animated files.",
                        },
                    },
                    "additionalProperties": _OPTION,
                }
            },
            f"{IMAGE}*": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "A picture; other fields are in the address, as JSON: "
                    "`/encode?outputs=[%22pooled%22]`.",
                }
            },
        }
    }
}
"""Additions to the OpenAPI document of a route whose schema takes files."""
MAX_PARTS = 1024
"""Maximum parts of a form, each of which takes 20 µs."""
SLICE_BYTES = 2**18
"""Bytes that the parser gets at a time."""
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)


@dataclass
class Parts:
    """Parts of a form, in order; a file is a picture, and any other part is JSON."""

    inputs: list[Picture | bytes] = field(default_factory=list)
    fields: dict[str, bytes] = field(default_factory=dict)
    complete: bool = False


def is_file(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body is a form or a picture by its content type."""
    given = headers.get(b"content-type", b"")[:19].lower()
    return given == FORM.encode() or given.startswith(IMAGE.encode())


async def read_files(
    body: bytes, headers: Mapping[bytes, bytes], query: bytes, reservation: Reservation
) -> dict[str, object]:
    """Return the fields of a request with files, as if it were JSON, with pictures as its inputs.

    Args:
        body: body of the request.
        headers: headers of the request.
        query: query of the request's address, which has the options of a single picture.
        reservation: memory of the request, which grows by the files of a form.

    """
    check_encoding(headers)
    if headers[b"content-type"][:6].lower() == IMAGE.encode():
        parts = Parts([Picture(body)], _of_query(query))
    else:
        if query:
            raise Unprocessable("options of a form are parts of the form, not of the address")
        reservation.grow(len(body))
        if len(body) <= INLINE_BODY_BYTES:
            parts = _parts(body, headers[b"content-type"])
        else:
            parts = await asyncio.to_thread(_parts, body, headers[b"content-type"])
    fields = {name: await _json(value, name, reservation) for name, value in parts.fields.items()}
    if WHOLE in fields:
        whole = fields.pop(WHOLE)
        if fields or not isinstance(whole, dict):
            raise Unprocessable("request is an object with all fields but the files: send it alone")
        fields = whole
    first_frame = fields.pop(FIRST_FRAME, False)
    if not isinstance(first_frame, bool):
        raise Unprocessable("first_frame: true or false is needed")
    if INPUTS in fields:
        raise Unprocessable("inputs are given twice: send each as a part of the form named inputs")
    if parts.inputs:
        fields[INPUTS] = [
            Picture(given.data, first_frame)
            if isinstance(given, Picture)
            else await _json(given, INPUTS, reservation)
            for given in parts.inputs
        ]
    return fields


def _of_query(query: bytes) -> dict[str, bytes]:
    parts = Parts()
    for name, value in parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True):
        _add(parts, name, value.encode())
    if parts.inputs:
        raise Unprocessable("inputs are given twice: the body is the only one")
    return parts.fields


def _parts(body: bytes, content_type: bytes) -> Parts:
    """Return the parts of a form.

    Raises:
        InvalidRequest: the form is damaged.
        Unprocessable: a field is given twice, or there are too many.
        UnsupportedMediaType: python-multipart is not installed.

    """
    try:
        from python_multipart.exceptions import FormParserError  # noqa: PLC0415 - an extra
        from python_multipart.multipart import Field, File, FormParser  # noqa: PLC0415
    except ModuleNotFoundError:
        raise UnsupportedMediaType(
            "this service was installed without the extra images, which reads forms: send pictures "
            "in base64"
        ) from None
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise InvalidRequest("the content type of a form needs its boundary")
    logging.getLogger("python_multipart.multipart").disabled = True  # one line for each bad form
    parts = Parts()

    def on_field(part: Field) -> None:
        name = (part.field_name or b"").decode("utf-8", "replace")
        _add(parts, name, part.value or b"")

    def on_file(part: File) -> None:
        if part.field_name != INPUTS.encode():
            raise Unprocessable(f"files of a form are named {INPUTS}, as its inputs in their order")
        part.file_object.seek(0)
        _check_room(parts)
        parts.inputs.append(Picture(part.file_object.read()))
        part.close()

    def on_end() -> None:
        parts.complete = True

    parser = FormParser(
        FORM,
        on_field,
        on_file,
        on_end,
        boundary=boundary[1] or boundary[2],
        config={"MAX_MEMORY_FILE_SIZE": len(body), "UPLOAD_ERROR_ON_BAD_CTE": True},
    )
    try:
        for start in range(0, len(body), SLICE_BYTES):
            parser.write(body[start : start + SLICE_BYTES])
        parser.finalize()
    except FormParserError:
        raise InvalidRequest("the form is damaged: send it as RFC 7578 says") from None
    if not parts.complete:
        raise InvalidRequest("the form ends before its last boundary")
    return parts


def _add(parts: Parts, name: str, value: bytes) -> None:
    """Add a part that is not a file."""
    _check_room(parts)
    if name == INPUTS:
        parts.inputs.append(value)
    elif name in parts.fields:
        raise Unprocessable(f"{field_name(name)} is given twice; only {INPUTS} may be repeated")
    else:
        parts.fields[name] = value


def _check_room(parts: Parts) -> None:
    if len(parts.inputs) + len(parts.fields) >= MAX_PARTS:
        raise Unprocessable(f"more than {MAX_PARTS} parts or options: send several requests")


async def _json(value: bytes, name: str, reservation: Reservation) -> object:
    try:
        return await read_json(value, reservation)
    except InvalidRequest:
        raise InvalidRequest(
            f"{field_name(name)}: the value is not JSON; a text needs quotes"
        ) from None
