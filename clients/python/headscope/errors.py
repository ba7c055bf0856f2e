"""Errors of calls.

HeadscopeError               status
├── Refused                  any other 4xx, 501   the service never answers this request
│   ├── Unauthorized         401, 403    the key is missing or wrong
│   ├── NotFound             404         there is no such model or route
│   └── TooLarge             413         a single input is too large
├── Overloaded               429         also after the last retry
├── Unavailable              502, 503    the engine is down
│   └── NoConnection         none        there is no answer, or the reply is incomplete
├── Failed                   500, 504    the engine failed, or does not answer in time
├── DeadlineExceeded         none        `timeout` passed
└── InvalidReply             any         the answer is not from this service
"""

from __future__ import annotations


class HeadscopeError(Exception):
    """Base of all errors of calls.

    Attributes:
        status: the HTTP status; None if there was no answer.
        detail: the service's own message; the status's name if the answer is not the service's.
        request_id: the service's id of the request, which its logs contain.
        retry_after_seconds: the wait that the last answer requested.
        inputs: the inputs of the failed request, as a range of the caller's list.
        index: index in the caller's list of the single refused input; None if the error is not
            about one input.

    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        detail: str | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = message if detail is None else detail
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.inputs: range | None = None
        self.index: int | None = None
        if request_id:
            self.add_note(f"request id: {request_id}")


class Refused(HeadscopeError):
    """Request that the service does not answer, however often it is sent."""


class Unauthorized(Refused):
    """Request without the required key, or with a wrong one."""


class NotFound(Refused):
    """Request for an unknown model or route."""


class TooLarge(Refused):
    """Request or reply that is too large even for a single input."""


class Overloaded(HeadscopeError):
    """Service that is overloaded."""


class Unavailable(HeadscopeError):
    """Service whose engine is down, or that is starting or stopping."""


class NoConnection(Unavailable):
    """Request without an answer, or whose connection ended before the reply was complete."""


class Failed(HeadscopeError):
    """Failure of the engine, or an engine that did not answer in time."""


class DeadlineExceeded(HeadscopeError):
    """Expiry of the client's own `timeout`."""


class InvalidReply(HeadscopeError):
    """Answer that this service never gives."""
