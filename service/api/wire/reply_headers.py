"""Headers of the replies of models, as the OpenAPI document has them."""

from __future__ import annotations

from typing import Any

from service.inference.fingerprint import FINGERPRINT_CHARACTERS, FINGERPRINT_HEADER
from service.inference.text_warnings import HEADERS, MEANINGS

Responses = dict[int | str, dict[str, Any]]
"""Documented replies of a route by status, as FastAPI takes them."""
MODEL_HEADER = "x-model"
_ABOUT = {
    FINGERPRINT_HEADER: (
        f"{FINGERPRINT_CHARACTERS} hexadecimal digits that differ for another model, precision or "
        "execution provider"
    ),
    MODEL_HEADER: "Name of the model that answered, where several could or another was named",
    **{HEADERS[name]: f"Number of texts that were {meaning}" for name, meaning in MEANINGS.items()},
}
REPLY_HEADERS = {
    name: {
        "description": about,
        "schema": {"type": "integer" if name in HEADERS.values() else "string"},
    }
    for name, about in _ABOUT.items()
}


def with_reply_headers(responses: Responses) -> Responses:
    """Return the documented responses of a route with `REPLY_HEADERS` at status 200."""
    return {**responses, 200: {"headers": REPLY_HEADERS, **responses.get(200, {})}}
