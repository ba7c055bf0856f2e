"""Content negotiation between two media types (RFC 9110, 12.5.1)."""

from __future__ import annotations

import functools
import re

_QUALITY = re.compile(r"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*", re.IGNORECASE)


@functools.lru_cache(maxsize=64)
def prefers(accept: str, named: str, default: str) -> bool:
    """Return whether `Accept` names a media type, with at least the weight of the default.

    Ranges such as `*/*` are ignored, as clients add them to the types that they want.

    Args:
        accept: values of `Accept`, separated by commas.
        named: media type for clients that name it.
        default: media type for all other clients.

    """
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_type, *parameters = item.split(";")
        name = media_type.strip()
        qualities[name] = max(_quality(parameters), qualities.get(name, 0.0))
    return qualities.get(named, 0.0) > 0 and qualities[named] >= qualities.get(default, 0.0)


def _quality(parameters: list[str]) -> float:
    """Return the weight among a range's parameters; 1 if it is missing or malformed."""
    weights = [match[1] for parameter in parameters if (match := _QUALITY.fullmatch(parameter))]
    return float(weights[0]) if weights else 1.0
