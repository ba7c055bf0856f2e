"""Media types, their negotiation, entity tags, bytes of numbers in JSON, and names in paths."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request

_QUALITY = re.compile(r"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*", re.IGNORECASE)


@functools.lru_cache(maxsize=64)
def prefers(accept: str, named: str, default: str) -> bool:
    """Return whether `Accept` names a media type, with at least the weight of the default.

    Ranges such as `*/*` are ignored, as clients add them to the types that they want. A weight that
    is missing or malformed is 1.
    """
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_type, *parameters = item.split(";")
        weights = [float(match[1]) for own in parameters if (match := _QUALITY.fullmatch(own))]
        name = media_type.strip()
        qualities[name] = max([*weights, 1.0][0], qualities.get(name, 0.0))
    return qualities.get(named, 0.0) > 0 and qualities[named] >= qualities.get(default, 0.0)


def is_known(request: Request, etag: str) -> bool:
    """Return whether the client's copy has this entity tag (RFC 9110, section 13.1.2)."""
    known = request.headers.get("if-none-match", "")
    return etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}


JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"
OCTETS = "application/octet-stream"
FORM = "multipart/form-data"
IMAGE = "image/"
"""Media type of forms, and the beginning of the media types of pictures."""
Part = bytes | memoryview
"""A part of a reply's body: large ones are sent in parts, so that none is copied."""
Unwritten = Iterator[Part]
"""Pieces of a reply's body, which are generated on demand; see `Turns`."""
JSON_BYTES_PER_FLOAT = 15
"""Predicted bytes of a float32 and its comma in JSON, above the measured means (up to 11.8 for
hidden states, 12.7 for unit vectors, 14.1 for the maps of a head)."""
JSON_BYTES_PER_INDEX = 6
"""Predicted bytes of a token's index and its comma in JSON."""


class NameConvertor(PathConvertor):
    """Convertor that matches any text, unlike Starlette's `path` also newlines.

    A path that matches no route would be answered in the native error format, not in the format
    of its dialect.
    """

    regex = "(?s:.*)"


register_url_convertor("name", NameConvertor())
MODEL_PARAMETER = "{model:name}"
"""Parameter `model` of a path; the name may contain slashes, percent-encoded or not."""
