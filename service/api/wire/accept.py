"""What a client prefers of two media types (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re

_QUALITY = re.compile(r"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*", re.IGNORECASE)


def prefers(accept: str, named: str, default: str) -> bool:
    """Whether a client names a media type, and names the default with no higher weight.

    A range as `*/*` is no name: beside one it asks for whatever else there is, and clients add it
    to all that they ask for.

    Args:
        accept: the values of `Accept`, separated by commas.
        named: a media type that only who names it gets.
        default: the media type that everyone else gets.

    """
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_type, *parameters = item.split(";")
        name = media_type.strip()
        qualities[name] = max(_quality(parameters), qualities.get(name, 0.0))
    return qualities.get(named, 0.0) > 0 and qualities[named] >= qualities.get(default, 0.0)


def _quality(parameters: list[str]) -> float:
    """The weight among a range's parameters; 1 without one, or with one that is none."""
    found = [match for parameter in parameters if (match := _QUALITY.fullmatch(parameter))]
    return float(found[0][1]) if found else 1.0
