"""Fields `id` and `meta` of replies, types of vectors, and errors, in Cohere's format."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal

import numpy as np
import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from model.numerics.quantization import Quantization
from service.api.drop_in.embedding import BASE64_BYTES_PER_FLOAT
from service.api.wire.json_pieces import vector_pieces
from service.api.wire.media import JSON_BYTES_PER_FLOAT, Unwritten
from service.api.wire.problems import error_reply, problems_in_form
from service.engines.contract import Floats
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


EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
INTEGER_BYTES = 5
"""Maximum bytes of an 8-bit number and its comma in JSON."""
_UNIT = np.array([[-128.5], [126.5]], np.float32) / np.float32(127)
"""Range of features whose 256 buckets are the integers nearest to 127 x."""


@dataclass(frozen=True)
class VectorForm:
    """Conversion and serialisation of one vector type."""

    convert: Quantization
    feature_bytes: float
    """Predicted bytes of a feature in JSON."""
    as_base64: bool = False

    def pieces(self, vector: Floats) -> Unwritten:
        """Return a vector `[D]` as JSON."""
        return vector_pieces(self.convert(vector), as_base64=self.as_base64)


FORMS: dict[EmbeddingType, VectorForm] = {
    "float": VectorForm(Quantization(), JSON_BYTES_PER_FLOAT),
    "int8": VectorForm(Quantization("int8", _UNIT), INTEGER_BYTES),
    "uint8": VectorForm(Quantization("uint8", _UNIT), INTEGER_BYTES),
    "binary": VectorForm(Quantization("binary"), INTEGER_BYTES / 8),
    "ubinary": VectorForm(Quantization("ubinary"), INTEGER_BYTES / 8),
    "base64": VectorForm(Quantization(), BASE64_BYTES_PER_FLOAT, as_base64=True),
}
