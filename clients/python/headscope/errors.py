"""Why a call has no result.

HeadscopeError               status
├── Refused                  any other 4xx, 501   this request is never answered
│   ├── Unauthorized         401, 403    no key, or a wrong one
│   ├── NotFound             404         no model of this name, or no such route
│   └── TooLarge             413         of one input alone
├── Overloaded               429         also after the last retry
├── Unavailable              502, 503    the engine is down
│   └── NoConnection         none        nobody answered, or the reply broke off
├── Failed                   500, 504    the engine failed, or hangs
├── DeadlineExceeded         none        `timeout` passed
└── InvalidReply             any         what answers is not this service
"""

from __future__ import annotations


class HeadscopeError(Exception):
    """No result.

    Attributes:
        status: the HTTP status; None if there was no answer.
        detail: the service's own words; the status's name where it is not the service that speaks.
        request_id: the service's id of the request, by which its logs have it.
        retry_after_seconds: what the last answer asked to wait.
        inputs: the inputs that were asked for together, as a range of the caller's list.
        index: index in the caller's list of the one input that was refused; None where the error
            is not about one input.

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
    """The service does not answer such a request, however often it is sent."""


class Unauthorized(Refused):
    """The service wants a key, and the request has none or a wrong one."""


class NotFound(Refused):
    """No model has the name, or there is no such route."""


class TooLarge(Refused):
    """The request or its reply would be too large, for one input alone."""


class Overloaded(HeadscopeError):
    """The service has too much to do."""


class Unavailable(HeadscopeError):
    """The engine is down, or the service starts or stops."""


class NoConnection(Unavailable):
    """Nobody answers, or the connection ended before the reply was complete."""


class Failed(HeadscopeError):
    """The engine failed, or did not answer in time."""


class DeadlineExceeded(HeadscopeError):
    """The client's own `timeout` passed."""


class InvalidReply(HeadscopeError):
    """An answer that this service does not give."""
