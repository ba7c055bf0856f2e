"""The errors that callers are told about; each one owns its HTTP status.

    ServiceError                 status  error_type (TEI's spelling)
    ├── InvalidRequest           400     Validation   not JSON, not UTF-8, NaN, a lone surrogate
    ├── EmptyInputs              400     Empty        a list without a text
    ├── Unauthorized             401     Validation   with WWW-Authenticate
    ├── UnknownModel             404     Validation   of several models none has the name
    ├── RequestTimeout           408     Validation   the client is slow
    ├── ReplyTooLarge            413     Validation   the predicted reply exceeds the limit
    ├── BodyTooLarge             413     Validation
    ├── RequestTooLarge          413     Validation   its work would take too much memory
    ├── UnsupportedMediaType     415     Validation
    ├── MisdirectedRequest       421     Validation   for a host that is not the service's
    ├── Unprocessable            422     Validation   well-formed JSON that asks for the impossible
    │   └── InputTooLong         422     Tokenizer
    ├── NoTaskHead               424     Backend      the model has no task head that could answer
    │   └── NoEmbeddings         424     Backend      the model gives no vectors of texts
    ├── HeaderFieldsTooLarge     431     Validation
    ├── Overloaded               429     Overloaded   with Retry-After
    │   └── DeadlinePassed       429     Overloaded   nothing of it was computed
    ├── EngineFailed             500     Backend      the engine raised, or answered nonsense
    ├── EngineNotInstalled       501     Backend
    ├── NotExported              501     Backend      a foreign graph has no maps, no other layers
    │   └── NotVerified          501     Backend      this use of the artifact failed verification
    │       └── HeadsNotVerified 501     Backend      the use that failed is heads
    ├── EngineUnavailable        503     Unhealthy    with Retry-After
    │   └── EngineOutOfMemory    503     Backend
    └── EngineTimeout            504     Backend

Their form on the wire belongs to the dialect of the route: see `service.api.dialects`.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base of every error that a caller is told about."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    slug: ClassVar[str] = "internal"
    error_type: ClassVar[str] = "Backend"
    retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str, *, retry_after_seconds: int | None = None, reason: str = ""
    ) -> None:
        """Say what is wrong.

        Args:
            detail: what the caller is told.
            retry_after_seconds: when another attempt is worth it.
            reason: of the refusal in the metrics; that of the class when empty.

        """
        super().__init__(detail)
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds
        self.reason = reason or self.slug.replace("-", "_")


class InvalidRequest(ServiceError):
    """The body is not JSON that can be read."""

    status, title, slug, error_type = 400, "Invalid request", "invalid-request", "Validation"


class EmptyInputs(ServiceError):
    """A list of texts holds none, in dialects that refuse it with a status of its own."""

    status, title, slug, error_type = 400, "Empty inputs", "empty-inputs", "Empty"


class Unauthorized(ServiceError):
    """The request has no key, or a wrong one."""

    status, title, slug, error_type = 401, "Unauthorized", "unauthorized", "Validation"

    def __init__(self, detail: str, *, prompts: bool = True) -> None:
        """Say what is wrong.

        Args:
            detail: what the caller is told.
            prompts: whether a browser is to ask for a password; a page that asks itself is not
                to be covered by the browser's own dialog.

        """
        super().__init__(detail)
        self.prompts = prompts


class UnknownModel(ServiceError):
    """The request names a model that is not among those served."""

    status, title, slug, error_type = 404, "Unknown model", "unknown-model", "Validation"


class RequestTimeout(ServiceError):
    """The request took its client too long to send."""

    status, title, slug, error_type = 408, "Request timed out", "request-timeout", "Validation"
    retryable = True


class BodyTooLarge(ServiceError):
    """The request's body exceeds the limit."""

    status, title, slug, error_type = 413, "Body too large", "body-too-large", "Validation"


class ReplyTooLarge(ServiceError):
    """The reply that was asked for would exceed the limit."""

    status, title, slug, error_type = 413, "Reply too large", "reply-too-large", "Validation"


class RequestTooLarge(ServiceError):
    """The request alone would take more memory than all requests may."""

    status, title, slug, error_type = 413, "Request too large", "request-too-large", "Validation"


class UnsupportedMediaType(ServiceError):
    """The body's content type or encoding is not supported."""

    status, title, slug, error_type = (
        415,
        "Unsupported media type",
        "unsupported-media-type",
        "Validation",
    )


class MisdirectedRequest(ServiceError):
    """The request is for another host."""

    status, title, slug, error_type = 421, "Misdirected request", "misdirected", "Validation"


class Unprocessable(ServiceError):
    """The request is well-formed and asks for something impossible."""

    status, title, slug, error_type = 422, "Unprocessable request", "unprocessable", "Validation"


class InputTooLong(Unprocessable):
    """A text has more tokens or characters than fit."""

    title, slug, error_type = "Input too long", "input-too-long", "Tokenizer"


class NoTaskHead(ServiceError):
    """The model has no task head that could answer."""

    status, title, slug, error_type = 424, "No task head", "no-task-head", "Backend"


class NoEmbeddings(NoTaskHead):
    """The model's answers are no vectors of texts."""

    title, slug = "No embeddings", "no-embeddings"


class HeaderFieldsTooLarge(ServiceError):
    """The request line and headers exceed the limits."""

    status, title, slug, error_type = 431, "Head too large", "head-too-large", "Validation"


class Overloaded(ServiceError):
    """The queue is full."""

    status, title, slug, error_type = 429, "Overloaded", "overloaded", "Overloaded"
    retryable = True


class DeadlinePassed(Overloaded):
    """The request waited for as long as it may, and nothing of it was computed."""

    title, slug = "Deadline passed", "deadline-passed"


class EngineFailed(ServiceError):
    """The engine raised, or its output cannot be right."""

    status, title, slug, error_type = 500, "Engine failed", "engine-failed", "Backend"


class EngineNotInstalled(ServiceError):
    """The engine that was asked for is not part of this installation."""

    status, title, slug, error_type = 501, "Engine not installed", "engine-not-installed", "Backend"


class NotExported(ServiceError):
    """The graph that is served does not give what was asked for."""

    status, title, slug, error_type = 501, "Not exported", "not-exported", "Backend"


class NotVerified(NotExported):
    """The use that was asked for failed the artifact's verification."""

    title, slug = "Not verified", "not-verified"


class HeadsNotVerified(NotVerified):
    """Attention weights or hidden states were asked for, and failed the verification."""


class EngineUnavailable(ServiceError):
    """The engine that was asked for is down, or the service is draining."""

    status, title, slug, error_type = 503, "Engine unavailable", "engine-unavailable", "Unhealthy"
    retryable = True


class EngineOutOfMemory(EngineUnavailable):
    """There is no memory for the batch, nor for half of it."""

    title, slug, error_type = "Out of memory", "out-of-memory", "Backend"


class EngineTimeout(ServiceError):
    """The engine did not answer in time."""

    status, title, slug, error_type = 504, "Engine timed out", "engine-timeout", "Backend"
    retryable = True
