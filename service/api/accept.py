"""What a client prefers of two media types (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re

_QUALITY = re.compile(r"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*", re.IGNORECASE)


def prefers(accept: str, named: str, default: str) -> bool:
    """Whether a client names a media type, and likes it no less than the default.

    Args:
        accept: the values of `Accept`, separated by commas.
        named: a media type that only who names it gets; a range is no name.
        default: the media type that everyone else gets.

    """
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_range, *parameters = item.split(";")
        quality = _quality(parameters)
        media_range = media_range.strip()
        qualities[media_range] = max(quality, qualities.get(media_range, 0.0))
    ranges = (default, f"{default.partition('/')[0]}/*", "*/*")
    otherwise = next((qualities[one] for one in ranges if one in qualities), 0.0)
    return qualities.get(named, 0.0) > 0 and qualities[named] >= otherwise


def _quality(parameters: list[str]) -> float:
    """The weight among a range's parameters; 1 without one, or with one that is none."""
    found = [match for parameter in parameters if (match := _QUALITY.fullmatch(parameter))]
    return float(found[0][1]) if found else 1.0
