"""Headers, warnings and errors that replies of all dialects share.

The native format of errors is `application/problem+json` (RFC 9457), without data of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import Any

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.errors import ServiceError, Unauthorized
from service.inference.fingerprint import FINGERPRINT_CHARACTERS, FINGERPRINT_HEADER
from service.inference.timings import HEADERS, MEANINGS, Warnings


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


CHALLENGES = ('Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"')
"""Challenges of `www-authenticate`, for programs and for browsers. Each is a header of its own,
since Chromium reads only the first challenge of a header."""
MAX_ERRORS = 10
MAX_DETAIL_CHARACTERS = 1000
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}|[0-9]{1,9}")


class Problem(BaseModel):
    """Error (RFC 9457), with the members that text-embeddings-inference's clients read."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    error_type: str
    retryable: bool
    request_id: str


_PROBLEM = {"application/problem+json": {"schema": Problem.model_json_schema()}}
PROBLEMS: Responses = {
    status: {"description": description, "content": _PROBLEM}
    for status, description in {
        400: "Not JSON",
        401: "API key missing or wrong",
        404: "Unknown model",
        408: "The request took too long to send",
        409: "The model has another fingerprint than the request expects",
        413: "Body or predicted reply too large",
        415: "Wrong content type or encoding",
        421: "Unknown host",
        422: "Wrong schema or invalid input",
        429: "Overloaded",
        431: "Head too large",
        500: "The engine failed",
        501: "The requested engine is not installed, or the model's graph lacks the output",
        503: "The requested engine is down",
        504: "The engine did not answer in time",
    }.items()
}
"""Error replies of a route, for the OpenAPI document."""


def problems_in_form(model: type[BaseModel], without: Container[int] = ()) -> Responses:
    """Return the error replies of a route in a dialect's form, for the OpenAPI document."""
    return {
        status: {"description": problem["description"], "model": model}
        for status, problem in PROBLEMS.items()
        if status not in without
    }


def problem_response(error: ServiceError, request_id: str) -> Response:
    """Return the reply of an error."""
    problem = {
        "type": f"/problems/{error.slug}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "error": error.detail,
        "error_type": error.error_type,
        "retryable": error.retryable,
        "request_id": request_id,
    }
    return error_reply(error, orjson.dumps(problem), "application/problem+json")


def error_reply(error: ServiceError, body: bytes, media_type: str) -> Response:
    """Return a reply with an error's status, `retry-after` and challenges."""
    headers = {}
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    response = Response(body, error.status, headers, media_type=media_type)
    if isinstance(error, Unauthorized):
        for challenge in CHALLENGES if error.prompts else CHALLENGES[:1]:
            response.headers.append("www-authenticate", challenge)
    return response


def describe_errors(errors: Sequence[Any]) -> str:
    """Describe the first `MAX_ERRORS` of pydantic's errors in one line, each with its field."""
    described = [f"{_field(item['loc'][1:])}: {item['msg']}" for item in errors[:MAX_ERRORS]]
    return "; ".join(described)[:MAX_DETAIL_CHARACTERS]


def _field(location: Sequence[str | int]) -> str:
    """Return a field's path, with `?` for names that are not plain identifiers or indices."""
    return ".".join(field_name(str(part)) for part in location) or "body"


def field_name(name: str) -> str:
    """Return a caller's name of a field for messages; `?` if it is not an identifier or index."""
    return name if _FIELD_NAME.fullmatch(name) else "?"
