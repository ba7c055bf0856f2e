"""Context of a request, shared by the HTTP layer, the routes and telemetry."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starlette.responses import Response

from service.errors import ServiceError
from service.inference.timings import Timings
from service.system.budget import Reservation

Model = TypeVar("Model")
"""Type of a served model, which telemetry and the HTTP layer do not know."""
ErrorForm = Callable[[ServiceError, str], Response]
"""Function from an error and a request id to the reply."""


def header_fields(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Return the value of each header by its name in lower case.

    Values of a repeated header are joined by commas (RFC 9110, 5.3).
    """
    fields = dict(headers)
    if len(fields) == len(headers):
        return fields
    return {name: b", ".join(value for own, value in headers if own == name) for name in fields}


@dataclass(slots=True)
class RequestContext(Generic[Model]):
    """State of one request; `ExchangeMiddleware` stores it in the ASGI scope as `context`."""

    request_id: str
    reservation: Reservation
    """Memory of the request; released once the request is answered."""
    headers: Mapping[bytes, bytes]
    """Headers of the request; see `header_fields`."""
    received: float = field(default_factory=time.monotonic)
    """`time.monotonic()` when the body was complete; until then, when the head was complete."""
    client: str = ""
    """Name of the API key, or address without keys; its requests share one rate of service."""
    key: str = ""
    """Name of the API key; empty without keys."""
    status: int = 0
    """Status of the reply; 0 until the reply has begun."""
    model: Model | None = None
    """Model that answers the request; None until the route has chosen it."""
    fingerprint: tuple[bytes, bytes] | None = None
    """Header with the fingerprint of the model and the engine."""
    error_form: ErrorForm | None = None
    """Format of errors for the request's body; None for the format of the path's dialect."""
    predicted_bytes: int = 0
    """Predicted bytes of the reply; 0 without a prediction."""
    timings: Timings | None = None
    """Timings of a reply with computation; for a streamed reply, of its first part."""
