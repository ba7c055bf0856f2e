"""Bodies of requests: strict JSON with a bounded number of values, forms, and single pictures.

A parser creates an object for every value: a body of 16 MiB that only lists empty lists takes
gigabytes, and blocks all threads meanwhile. Values are therefore counted before parsing.

The values of a form's fields are JSON: `"cls"`, with quotes, is a text. python-multipart, of the
extra `images`, reads forms (RFC 7578); all files stay in memory.

Routes of other services' dialects ignore unknown fields, as those services do, except the fields
of `HARMLESS`: a client that sends one expects other vectors, scores or ranks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import orjson

from service.api.wire.media import FORM, IMAGE, JSON
from service.api.wire.replies import field_name
from service.errors import InvalidRequest, Unprocessable, UnsupportedMediaType
from service.inference.tokenization.inputs import Picture
from service.system.budget import Reservation

if TYPE_CHECKING:
    from python_multipart.multipart import File

MAX_VALUES = 2**16
"""Maximum number of values in a body, including nested values; a request has a few thousand."""
INLINE_BODY_BYTES = 2**16
"""Maximum bytes of a body that is parsed on the event loop, in 2 ms at most; others in a thread."""
VALUE_BYTES, WIDEST_BYTES = 120, 4
"""Memory of a parsed value beside its characters, and maximum memory of a character, in bytes."""
BLOCK_BYTES = 2**18
"""Bytes of a body that are scanned at a time."""
_BEFORE_VALUES = b",[{"
"""Bytes before a value: all values but the first follow a comma, or open a list or an object."""
_LARGE_BODIES = ThreadPoolExecutor(1, "json")
"""Thread that parses large bodies one after another: each holds Python's global lock for
milliseconds, so the event loop would wait for all bodies that are parsed at once."""


def checked_media_type(headers: Mapping[bytes, bytes], accepted: Sequence[str]) -> str:
    """Return the content type, or the range as `image/*`, if it is accepted and not compressed.

    An empty media type accepts requests without the header.
    """
    kind = headers.get(b"content-type", b"").decode("latin-1")
    if kind not in accepted:
        kind = kind.partition(";")[0].strip().lower()
        kind = IMAGES if kind.startswith(IMAGE) else kind
        if kind not in accepted:
            named = " or ".join(filter(None, accepted))
            raise UnsupportedMediaType(f"the content type must be {named}")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMediaType("compressed bodies are not taken")
    return kind


async def read_json(body: bytes, reservation: Reservation) -> object:
    """Parse a body with orjson, which rejects NaN, lone surrogates and broken UTF-8.

    The reservation of the request grows by the memory of the body's values.

    Raises:
        InvalidRequest: the body is not JSON.
        Unprocessable: the body has too many values.
        RequestTooLarge: the values may take more memory than all requests may.
        Overloaded: the other requests leave too little memory.

    """
    if len(body) <= INLINE_BODY_BYTES:  # which has too few bytes for too many values
        reservation.grow(parsed_bytes(body))
        return _parse(body)
    reservation.grow(len(body))  # without room, refuse before it is parsed
    loop = asyncio.get_running_loop()
    size = await loop.run_in_executor(_LARGE_BODIES, parsed_bytes, body)
    reservation.grow(size - len(body))
    return await loop.run_in_executor(_LARGE_BODIES, _parse, body)


def parsed_bytes(body: bytes) -> int:
    """Return the maximum bytes of memory that the values of a body take, at least the body's own.

    A text takes as many bytes a character as its widest one needs.
    """
    wide = not body.isascii() or b"\\u" in body
    values = min(1 + sum(map(body.count, _BEFORE_VALUES)), MAX_VALUES)
    return VALUE_BYTES * values + (WIDEST_BYTES if wide else 1) * len(body)


def _parse(body: bytes) -> object:
    # upper bound first: it also counts characters inside strings, which count_values excludes
    large = len(body) > INLINE_BODY_BYTES and sum(map(body.count, _BEFORE_VALUES)) >= MAX_VALUES
    if large and count_values(body) > MAX_VALUES:
        raise Unprocessable(f"the body has more than {MAX_VALUES} values")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body {_fault(body, error)}") from None


def _fault(body: bytes, error: orjson.JSONDecodeError) -> str:
    """Describe why a body is not JSON in UTF-8."""
    encoding = json.detect_encoding(body)
    if encoding == "utf-8-sig":
        return "begins with a byte order mark (UTF-8 BOM): send it without these 3 bytes"
    if encoding != "utf-8":
        sign = "zero bytes" if encoding.endswith("e") else "byte order mark"
        return f"is not UTF-8 but {encoding[:6].upper()} by its {sign}: encode it as UTF-8"
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as invalid:
        return f"is not UTF-8 (at byte {invalid.start}): encode it as UTF-8, not e.g. as Latin-1"
    return f"is not valid JSON (at byte {len(error.doc[: error.pos].encode())})"


def count_values(body: bytes) -> int:
    """Count the values of a JSON body, empty lists and objects twice, up to about `MAX_VALUES`."""
    count, inside = 1, False
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # without escaped quotes
    for start in range(0, len(plain), BLOCK_BYTES):
        pieces = plain[start : start + BLOCK_BYTES].split(b'"')
        outside = b"".join(pieces[inside::2])
        count += sum(map(outside.count, _BEFORE_VALUES))
        inside ^= len(pieces) % 2 == 0
        if count > MAX_VALUES:
            break
    return count


HARMLESS: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("chat_template", "chat_template_kwargs", "chunk", "dimensions", "input_type"),
            *("instruction", "layer", "max_tokens", "max_tokens_per_doc", "max_tokens_per_query"),
            *("messages", "mm_processor_kwargs", "normalize", "output_dimension", "overflow"),
            *("pooling", "prompt", "prompt_name", "spans", "task", "top_k"),
            *("truncate_prompt_tokens", "truncation"),
        ),
        (),
    ),
    **dict.fromkeys(("activation", "add_special_tokens", "normalized"), (True,)),
    **dict.fromkeys(("softmax", "use_activation"), (True,)),
    **dict.fromkeys(("late_chunking", "raw_scores"), (False,)),
    **dict.fromkeys(("return_embeddings", "return_multivector"), (False,)),
    **dict.fromkeys(("embed_dtype", "vector_type"), ("float32",)),
    **dict.fromkeys(("embedding_type", "encoding_format", "output_dtype"), ("float",)),
    "embedding_types": (["float"],),
    "endianness": ("native", "little"),
    "images": ([],),
    "max_chunks_per_doc": (1,),
    "modality": ("text",),
    "rank_fields": (["text"],),
    "truncate": (True, "END"),
    "truncation_direction": ("right", "Right"),
    "truncation_side": ("right",),
}
"""Field → values that are accepted on routes without the field, as they do not change replies."""


def check_unknown(fields: Mapping[str, object], known: Container[str]) -> None:
    """Raise for the first field of a request that the route lacks and may not ignore."""
    for name, value in fields.items():
        if name in known or value is None or name not in HARMLESS:
            continue
        accepted = HARMLESS[name]
        if not any(type(value) is type(item) and value == item for item in accepted):
            instead = f", or send {' or '.join(map(repr, accepted))}" if accepted else ""
            raise Unprocessable(
                f"{name}: it would change the reply, and this route does not have it: leave it out"
                + instead
            )


INPUTS, WHOLE, FIRST_FRAME = "inputs", "request", "first_frame"
"""Fields of a form: an input, an object with all other fields, and an option of all files."""
IMAGES = f"{IMAGE}*"
MEDIA_TYPES = (JSON, FORM, IMAGES)
"""Media types of a request that may have pictures."""
_BINARY = {"type": "string", "format": "binary"}
_FIELDS = {
    INPUTS: {
        "type": "array",
        "items": _BINARY,
        "description": "A file of a picture each; or any input, as JSON, in a part without a file "
        "name.",
    },
    WHOLE: {
        "type": "object",
        "description": "All other fields, in place of a part for each.",
    },
    FIRST_FRAME: {"type": "boolean", "description": "Take the first frame of animated files."},
}
_OPTION = {"description": "Any other field of the request, as JSON: a text has quotes."}
_FORM = {"type": "object", "properties": _FIELDS, "additionalProperties": _OPTION}
_PICTURE = {
    **_BINARY,
    "description": "A picture; other fields are in the address, as JSON: "
    "`/encode?outputs=[%22pooled%22]`.",
}
OPENAPI = {
    "requestBody": {"content": {FORM: {"schema": _FORM}, IMAGES: {"schema": _PICTURE}}},
}
"""Additions to the OpenAPI document of a route whose schema takes files."""
MAX_PARTS = 1024
"""Maximum parts of a form, each of which takes 20 µs."""
SLICE_BYTES = 2**18
"""Bytes that the parser gets at a time."""
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,70})"|([^;\s"]{1,70}))', re.IGNORECASE)


Parts = list[tuple[str, Picture | bytes]]
"""Names and values of a form's parts, in order; a file is a picture, and any other part is JSON."""


async def read_files(
    body: bytes, headers: Mapping[bytes, bytes], query: bytes, reservation: Reservation
) -> dict[str, object]:
    """Return the fields of a request with files, as if it were JSON, with pictures as its inputs.

    `query` has the options of a single picture. The reservation grows by the files of a form.
    """
    content_type, inputs, fields = headers[b"content-type"], list[object](), dict[str, object]()
    if content_type[: len(IMAGE)].lower() == IMAGE.encode():
        parts = _picture_and_options(body, query)
    elif query:
        raise Unprocessable("options of a form are parts of the form, not of the address")
    else:
        reservation.grow(len(body))
        if len(body) <= INLINE_BODY_BYTES:
            parts = _parts(body, content_type)
        else:
            parts = await asyncio.to_thread(_parts, body, content_type)
    for name, value in parts:
        if name in fields:
            raise Unprocessable(f"{field_name(name)} is given twice; only {INPUTS} may be repeated")
        read: object = value
        if isinstance(value, bytes):
            try:
                read = await read_json(value, reservation)
            except InvalidRequest:
                raise InvalidRequest(
                    f"{field_name(name)}: the value is not JSON; a text needs quotes"
                ) from None
        if name == INPUTS:
            inputs.append(read)
        else:
            fields[name] = read
    return _merged(inputs, fields)


def _merged(inputs: Sequence[object], fields: dict[str, object]) -> dict[str, object]:
    """Return the fields of a request by its inputs and all other parts."""
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
    if inputs:
        fields[INPUTS] = [
            Picture(given.data, first_frame) if isinstance(given, Picture) else given
            for given in inputs
        ]
    return fields


def _picture_and_options(body: bytes, query: bytes) -> Parts:
    options = parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True)
    if any(name == INPUTS for name, _ in options):
        raise Unprocessable("inputs are given twice: the body is the only one")
    if len(options) >= MAX_PARTS:
        raise _too_many_parts()
    return [(INPUTS, Picture(body)), *((name, value.encode()) for name, value in options)]


def _parts(body: bytes, content_type: bytes) -> Parts:
    """Return the parts of a form."""
    try:
        from python_multipart.exceptions import FormParserError  # noqa: PLC0415 - an extra
        from python_multipart.multipart import FormParser  # noqa: PLC0415
    except ModuleNotFoundError:
        raise UnsupportedMediaType(
            "this service was installed without the extra images, which reads forms: send pictures "
            "in base64"
        ) from None
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise InvalidRequest("the content type of a form needs its boundary")
    logging.getLogger("python_multipart.multipart").disabled = True  # one line for each bad form
    parts: Parts = []
    ends: list[bool] = []

    def add(name: bytes | None, value: Picture | bytes) -> None:
        if len(parts) >= MAX_PARTS:
            raise _too_many_parts()
        parts.append(((name or b"").decode("utf-8", "replace"), value))

    def add_file(part: File) -> None:
        if part.field_name != INPUTS.encode():
            raise Unprocessable(f"files of a form are named {INPUTS}, as its inputs in their order")
        part.file_object.seek(0)
        add(part.field_name, Picture(part.file_object.read()))
        part.close()

    parser = FormParser(
        FORM,
        lambda part: add(part.field_name, part.value or b""),
        add_file,
        lambda: ends.append(True),
        boundary=boundary[1] or boundary[2],
        config={"MAX_MEMORY_FILE_SIZE": len(body), "UPLOAD_ERROR_ON_BAD_CTE": True},
    )
    try:
        for start in range(0, len(body), SLICE_BYTES):
            parser.write(body[start : start + SLICE_BYTES])
        parser.finalize()
    except FormParserError:
        raise InvalidRequest("the form is damaged: send it as RFC 7578 says") from None
    if not ends:
        raise InvalidRequest("the form ends before its last boundary")
    return parts


def _too_many_parts() -> Unprocessable:
    return Unprocessable(f"more than {MAX_PARTS} parts or options: send several requests")
