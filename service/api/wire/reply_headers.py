"""Headers and warnings of the replies of models, and the check of the expected model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from service.errors import AnotherModel, Unprocessable
from service.inference.fingerprint import EXPECT_HEADER, FINGERPRINT_CHARACTERS, FINGERPRINT_HEADER
from service.inference.timings import HEADERS, MEANINGS, Warnings

EXPECTED = EXPECT_HEADER.encode()
_FINGERPRINT = re.compile(rb"[0-9a-f]{%d}" % FINGERPRINT_CHARACTERS)
FingerprintHeader = tuple[bytes, bytes]
"""Name and value of the reply header with a model's fingerprint."""


def check_expected(headers: Mapping[bytes, bytes], answering: FingerprintHeader) -> None:
    """Raise if a request expects another model than the answering one."""
    expected = headers.get(EXPECTED)
    if expected in (None, answering[1]):
        return
    if not _FINGERPRINT.fullmatch(expected):
        raise Unprocessable(
            f"{EXPECT_HEADER} must be {FINGERPRINT_CHARACTERS} hexadecimal digits, as in the "
            f"header {answering[0].decode()} of replies"
        )
    raise AnotherModel(
        f"{EXPECT_HEADER} is {expected.decode()}, and the model here is {answering[1].decode()}: "
        "vectors of the two cannot be compared; send the request to the expected model, or compute "
        "the stored vectors again"
    )


class WarningCounts(BaseModel):
    """Number of texts with each warning; zero counts are absent."""

    truncated: int | None = Field(None, description="Truncated texts.")
    prompt_missing: int | None = Field(
        None, description="Texts without a prompt, if the model has prompts but no default prompt."
    )
    unknown_tokens: int | None = Field(
        None, description="Texts in which over a tenth of the tokens are the unknown token."
    )


class WarnedReply(BaseModel):
    """Reply with a field for warnings."""

    warnings: WarningCounts | None = Field(
        None, description="Counts of warnings, as in the headers; absent without warnings."
    )


def warning_field(warnings: Warnings) -> dict[str, object]:
    """Return the field `warnings` of a reply, or an empty mapping without warnings."""
    counts = warnings.counts()
    return {"warnings": counts} if counts else {}


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
