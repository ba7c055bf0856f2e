"""Strict parsing of JSON bodies, with a limit on the number of values.

A parser creates an object for every value: a body of 16 MiB that only lists empty lists takes
gigabytes, and blocks all threads meanwhile. Values are therefore counted before parsing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from service.api.wire.media import JSON
from service.errors import InvalidRequest, Unprocessable, UnsupportedMediaType
from service.system.budget import Reservation

MAX_VALUES = 2**16
"""Maximum number of values in a body, including nested values; a request has a few thousand."""
INLINE_BODY_BYTES = 2**16
"""Maximum bytes of a body that is parsed on the event loop, in 2 ms at most; others in a thread."""
VALUE_BYTES, WIDEST_BYTES = 120, 4
"""Memory of a parsed value beside its characters, and maximum memory of a character, in bytes."""
BLOCK_BYTES = 2**20
"""Bytes of a body that are scanned at a time."""
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_BEFORE_VALUES = b",[{"
"""Bytes before a value: all values but the first follow a comma, or open a list or an object."""
_LARGE_BODIES = ThreadPoolExecutor(1, "json")
"""Thread that parses large bodies one after another: each holds Python's global lock for
milliseconds, so the event loop would wait for all bodies that are parsed at once."""
_COUNTED = np.isin(np.arange(256), [*_BEFORE_VALUES])


def check_media_type(headers: Mapping[bytes, bytes], accepted: Sequence[str] = (JSON,)) -> None:
    """Reject other content types than the accepted ones, and compressed bodies.

    Args:
        headers: headers of the request.
        accepted: media types; an empty one accepts requests without the header.

    """
    given = headers.get(b"content-type", b"").decode("latin-1")
    if given not in accepted and given.partition(";")[0].strip().lower() not in accepted:
        named = " or ".join(filter(None, accepted))
        raise UnsupportedMediaType(f"the content type must be {named}")
    if b"content-encoding" in headers:
        check_encoding(headers)


def check_encoding(headers: Mapping[bytes, bytes]) -> None:
    """Reject compressed bodies.

    Raises:
        UnsupportedMediaType: the body is compressed.

    """
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMediaType("compressed bodies are not taken")


async def read_json(body: bytes, reservation: Reservation) -> object:
    """Parse a body with orjson, which rejects NaN, lone surrogates and broken UTF-8.

    Args:
        body: body of a request.
        reservation: memory of the request, which grows by the memory of the body's values.

    Raises:
        InvalidRequest: the body is not JSON.
        Unprocessable: the body has too many values.
        RequestTooLarge: the values may take more memory than all requests may.
        Overloaded: the other requests leave too little memory.

    """
    if len(body) <= INLINE_BODY_BYTES:
        reservation.grow(parsed_bytes(body))
        return _parse(body)
    reservation.grow(len(body))  # without room, refuse before it is parsed
    loop = asyncio.get_running_loop()
    size = await loop.run_in_executor(_LARGE_BODIES, parsed_bytes, body)
    reservation.grow(size - len(body))
    return await loop.run_in_executor(_LARGE_BODIES, _parse_bounded, body)


def parsed_bytes(body: bytes) -> int:
    """Return the maximum bytes of memory that the values of a body take, at least the body's own.

    A text takes as many bytes a character as its widest one needs.
    """
    wide = not body.isascii() or b"\\u" in body
    values = min(1 + sum(map(body.count, _BEFORE_VALUES)), MAX_VALUES)
    return VALUE_BYTES * values + (WIDEST_BYTES if wide else 1) * len(body)


def _parse_bounded(body: bytes) -> object:
    # upper bound first: it also counts characters inside strings, which count_values excludes
    if sum(map(body.count, _BEFORE_VALUES)) >= MAX_VALUES and count_values(body) > MAX_VALUES:
        raise Unprocessable(f"the body has more than {MAX_VALUES} values")
    return _parse(body)


def _parse(body: bytes) -> object:
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
    count, inside, escaped = 1, False, False
    for start in range(0, len(body), BLOCK_BYTES):
        block = np.frombuffer(body, np.uint8, min(BLOCK_BYTES, len(body) - start), start)
        quotes = (block == _QUOTE) & ~_escaped(block, first=escaped)
        in_text = (np.cumsum(quotes) + inside) % 2 == 1
        count += int((_COUNTED[block] & ~in_text).sum())
        inside = bool(in_text[-1])
        escaped = bool(_escaped(np.append(block, np.uint8(0)), first=escaped)[-1])
        if count > MAX_VALUES:
            break
    return count


def _escaped(block: np.ndarray, *, first: bool) -> np.ndarray:
    """Return whether each byte follows an odd number of backslashes.

    Args:
        block: bytes of the body.
        first: whether the first byte does, by the bytes before the block.

    """
    at = np.arange(len(block))
    other = np.where(block == _BACKSLASH, -1, at)
    last_other = np.maximum.accumulate(other)  # -1 while all are backslashes
    run = at - last_other  # backslashes up to and including each byte
    run[last_other == -1] += first  # an odd one before the block
    return np.concatenate([[first], run[:-1] % 2 == 1])


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace each reference in a JSON schema with its definition, so that it can be embedded."""
    definitions = schema.get("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        kept = {name: walk(value) for name, value in node.items() if name not in ("$defs", "$ref")}
        if "$ref" in node:
            return walk(definitions[node["$ref"].rpartition("/")[2]]) | kept
        return kept

    result: dict[str, Any] = walk(schema)
    return result
