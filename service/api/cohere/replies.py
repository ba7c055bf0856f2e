"""The `id` and `meta` fields of replies, and errors, in Cohere's format."""

from __future__ import annotations

import uuid

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from service.api.wire.problems import error_reply, problems_in_form
from service.errors import NoTaskHead, ServiceError, Unprocessable
from service.inference.timings import Timings

_BAD_REQUEST = 400
_STATUSES = {Unprocessable.status: _BAD_REQUEST, NoTaskHead.status: _BAD_REQUEST}
"""Native status → Cohere's status, of requests that cannot be satisfied."""


class ErrorResponse(BaseModel):
    """Error message."""

    message: str


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error."""
    response = error_reply(error, orjson.dumps({"message": error.detail}), "application/json")
    response.status_code = _STATUSES.get(error.status, error.status)
    return response


ERRORS = problems_in_form(ErrorResponse, without=_STATUSES)
"""Error replies of a route, for the OpenAPI document."""


DOCUMENTS_PER_UNIT = 100
"""Number of documents of a query that Cohere bills as one search unit."""


class ApiVersion(BaseModel):
    """Version of Cohere's API."""

    version: str


class BilledUnits(BaseModel):
    """Usage that Cohere would bill."""

    input_tokens: int | None = None
    search_units: int | None = None


class Meta(BaseModel):
    """API version and usage of a reply."""

    api_version: ApiVersion
    billed_units: BilledUnits
    warnings: list[str] | None = Field(None, description="Absent without warnings.")


def new_id() -> str:
    """Return a new id of a reply."""
    return str(uuid.uuid4())


def searched(version: str, documents: int, timings: Timings) -> dict[str, object]:
    """Return the `meta` of a ranking."""
    units = -(-documents // DOCUMENTS_PER_UNIT)
    return _meta(version, {"search_units": units}, timings)


def embedded(version: str, timings: Timings) -> dict[str, object]:
    """Return the `meta` of embeddings."""
    return _meta(version, {"input_tokens": timings.tokens}, timings)


def _meta(version: str, units: dict[str, int], timings: Timings) -> dict[str, object]:
    meta = {"api_version": {"version": version}, "billed_units": units}
    warnings = timings.warnings.sentences()
    return meta | {"warnings": warnings} if warnings else meta
