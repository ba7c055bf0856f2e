"""Headers, warnings and errors that replies of all dialects share.

The native format of errors is `application/problem+json` (RFC 9457), without data of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.responses import Response

from service.api.wire.media import JSON, SAFETENSORS
from service.api.wire.schemas import Schema, named, schema
from service.errors import ServiceError, Unauthorized
from service.inference.fingerprint import FINGERPRINT_CHARACTERS, FINGERPRINT_HEADER
from service.inference.timings import HEADERS, MEANINGS, Warnings

_COUNTS = {f"{name}?": (int, f"Texts that were {meaning}.") for name, meaning in MEANINGS.items()}
WARNED = {
    "warnings?": (
        named("WarningCounts", _COUNTS),
        "Counts of warnings, as in the headers; absent without warnings.",
    )
}
"""Schema of `warning_field`."""


def warning_field(warnings: Warnings) -> dict[str, object]:
    """Return the field `warnings` of a reply, or an empty mapping without warnings."""
    counts = warnings.counts()
    return {"warnings": counts} if counts else {}


Responses = dict[int | str, dict[str, Any]]
"""Documented replies of a route by status, as FastAPI takes them."""
REPLY_HEADERS = {
    FINGERPRINT_HEADER: {
        "description": f"{FINGERPRINT_CHARACTERS} hexadecimal digits that differ for another "
        "model, precision or execution provider",
        "schema": schema(str),
    },
    "x-model": {
        "description": "Name of the model that answered, where several could or another was named",
        "schema": schema(str),
    },
    **{
        HEADERS[name]: {"description": f"Number of texts that were {about}", "schema": schema(int)}
        for name, about in MEANINGS.items()
    },
}


def replies(form: object, errors: Responses, *, binary: bool = False) -> Responses:
    """Return the replies of a route, of which the good one has this form in JSON."""
    content = {JSON: {"schema": schema(form)}}
    if binary:
        content[SAFETENSORS] = {"schema": Schema({"type": "string", "format": "binary"})}
    return {200: {"content": content}, **errors}


def with_reply_headers(responses: Responses) -> Responses:
    """Return the documented responses of a route with `REPLY_HEADERS` at status 200."""
    return {**responses, 200: {"headers": REPLY_HEADERS, **responses.get(200, {})}}


PROBLEM = "application/problem+json"
CHALLENGES = ('Bearer realm="headscope"', 'Basic realm="headscope", charset="UTF-8"')
"""Challenges of `www-authenticate`, for programs and for browsers. Each is a header of its own,
since Chromium reads only the first challenge of a header."""
MAX_ERRORS = 10
MAX_DETAIL_CHARACTERS = 1000
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}|[0-9]{1,9}")


_PROBLEM_FORM = {
    **dict.fromkeys(("type", "title", "detail", "error", "error_type", "request_id"), str),
    "status": int,
    "retryable": bool,
}
"""Error of RFC 9457, with the members that text-embeddings-inference's clients read."""
_PROBLEM = {PROBLEM: {"schema": named("Problem", _PROBLEM_FORM)}}
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


def problems_in_form(form: Schema, statuses: Mapping[int, int] | None = None) -> Responses:
    """Return the error replies of a route in a dialect's form, for the OpenAPI document.

    `statuses` are the dialect's by the native ones, where they differ.
    """
    found: Responses = {}
    for native, problem in PROBLEMS.items():
        status, content = (statuses or {}).get(int(native), native), {JSON: {"schema": form}}
        about = [found[status]["description"]] if status in found else []
        about.append(problem["description"])
        found[status] = {"description": "; or ".join(about), "content": content}
    return found


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
    return error_reply(error, orjson.dumps(problem), PROBLEM)


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
    described = [
        f"{'.'.join(field_name(str(part)) for part in item['loc']) or 'body'}: {item['msg']}"
        for item in errors[:MAX_ERRORS]
    ]
    return "; ".join(described)[:MAX_DETAIL_CHARACTERS]


def field_name(name: str) -> str:
    """Return a caller's name of a field for messages; `?` if it is not an identifier or index."""
    return name if _FIELD_NAME.fullmatch(name) else "?"
