"""Errors that clients receive; each class has its HTTP status.

    ServiceError                 status  error_type (TEI's spelling)
    ├── InvalidRequest           400     Validation   not JSON, not UTF-8, NaN, a lone surrogate
    ├── EmptyInputs              400     Empty        a list without a text
    ├── Unauthorized             401     Validation   with WWW-Authenticate
    ├── Forbidden                403     Validation   the key may not change the served models
    ├── UnknownModel             404     Validation   none of several models has the name
    ├── RequestTimeout           408     Validation   the client sends too slowly
    ├── AnotherModel             409     Validation   another fingerprint than the expected one
    ├── ModelBusy                409     Validation   another load or unload of the model runs
    ├── ReplyTooLarge            413     Validation   the predicted reply exceeds the limit
    ├── BodyTooLarge             413     Validation
    ├── RequestTooLarge          413     Validation   its work would take too much memory
    ├── UnsupportedMediaType     415     Validation
    ├── MisdirectedRequest       421     Validation   for another host than the service's
    ├── Unprocessable            422     Validation   well-formed JSON that asks for the impossible
    │   ├── InputTooLong         422     Tokenizer
    │   └── ModelNotLoadable     422     Backend      the model to load is damaged or invalid
    ├── NoTaskHead               424     Backend      the model lacks the required task head
    │   └── NoEmbeddings         424     Backend      the model does not compute vectors of texts
    ├── HeaderFieldsTooLarge     431     Validation
    ├── Overloaded               429     Overloaded   with Retry-After
    │   └── DeadlinePassed       429     Overloaded   before anything was computed
    ├── EngineFailed             500     Backend      the engine raised, or its output is invalid
    ├── EngineNotInstalled       501     Backend
    ├── NotExported              501     Backend      e.g. maps of a static embedding
    │   └── NotVerified          501     Backend      this use of the artifact failed verification
    ├── EngineUnavailable        503     Unhealthy    with Retry-After
    │   ├── EngineOutOfMemory    503     Backend
    │   └── ModelNotLoaded       503     Unhealthy    the model is being loaded, or cannot be
    ├── EngineTimeout            504     Backend
    └── InsufficientMemory       507     Backend      the model exceeds the memory budget

The dialect of the route determines their form on the wire: see `service.api.dialects`.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors that clients receive."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    slug: ClassVar[str] = "internal"
    error_type: ClassVar[str] = "Backend"
    retryable: ClassVar[bool] = False

    def __init__(
        self, detail: str, *, retry_after_seconds: int | None = None, reason: str = ""
    ) -> None:
        """Initialise with the message for the client.

        Args:
            detail: message for the client; characters that cannot be printed are escaped.
            retry_after_seconds: seconds after which the client should retry.
            reason: reason of the refusal in the metrics; the class's slug if empty.

        """
        self.detail = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in detail)
        super().__init__(self.detail)
        self.retry_after_seconds = retry_after_seconds
        self.reason = reason or self.slug.replace("-", "_")


class InvalidRequest(ServiceError):
    """The body is not valid JSON."""

    status, title, slug, error_type = 400, "Invalid request", "invalid-request", "Validation"


class EmptyInputs(ServiceError):
    """A list of texts is empty, in dialects that refuse it with a status of its own."""

    status, title, slug, error_type = 400, "Empty inputs", "empty-inputs", "Empty"


class Unauthorized(ServiceError):
    """The request has no key, or a wrong one."""

    status, title, slug, error_type = 401, "Unauthorized", "unauthorized", "Validation"

    def __init__(self, detail: str, *, prompts: bool = True) -> None:
        """Initialise with the message for the client.

        Args:
            detail: message for the client.
            prompts: whether a browser should ask for a password; False for a page that asks
                itself, which the browser's dialog would cover.

        """
        super().__init__(detail)
        self.prompts = prompts


class Forbidden(ServiceError):
    """The request's key does not allow the operation."""

    status, title, slug, error_type = 403, "Forbidden", "forbidden", "Validation"


class UnknownModel(ServiceError):
    """The request names a model that is not served."""

    status, title, slug, error_type = 404, "Unknown model", "unknown-model", "Validation"


class RequestTimeout(ServiceError):
    """The client took too long to send the request."""

    status, title, slug, error_type = 408, "Request timed out", "request-timeout", "Validation"
    retryable = True


class AnotherModel(ServiceError):
    """The model has another fingerprint than the request expects."""

    status, title, slug, error_type = 409, "Another model", "another-model", "Validation"


class ModelBusy(ServiceError):
    """Another load or unload of the same model is running."""

    status, title, slug, error_type = 409, "Model busy", "model-busy", "Validation"
    retryable = True


class BodyTooLarge(ServiceError):
    """The request's body exceeds the limit."""

    status, title, slug, error_type = 413, "Body too large", "body-too-large", "Validation"


class ReplyTooLarge(ServiceError):
    """The requested reply would exceed the limit."""

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
    """The request is well-formed but cannot be fulfilled."""

    status, title, slug, error_type = 422, "Unprocessable request", "unprocessable", "Validation"


class InputTooLong(Unprocessable):
    """A text has more tokens or characters than the limit."""

    title, slug, error_type = "Input too long", "input-too-long", "Tokenizer"


class ModelNotLoadable(Unprocessable):
    """The model to load cannot be opened or started, or failed its golden texts."""

    title, slug, error_type = "Model not loadable", "model-not-loadable", "Backend"


class NoTaskHead(ServiceError):
    """The model lacks the task head that the request needs."""

    status, title, slug, error_type = 424, "No task head", "no-task-head", "Backend"


class NoEmbeddings(NoTaskHead):
    """The model does not compute vectors of texts."""

    title, slug = "No embeddings", "no-embeddings"


class HeaderFieldsTooLarge(ServiceError):
    """The request line and headers exceed the limits."""

    status, title, slug, error_type = 431, "Head too large", "head-too-large", "Validation"


class Overloaded(ServiceError):
    """The queue is full."""

    status, title, slug, error_type = 429, "Overloaded", "overloaded", "Overloaded"
    retryable = True


class DeadlinePassed(Overloaded):
    """The request's deadline passed before any of it was computed."""

    title, slug = "Deadline passed", "deadline-passed"


class EngineFailed(ServiceError):
    """The engine raised, or its output is invalid."""

    status, title, slug, error_type = 500, "Engine failed", "engine-failed", "Backend"


class EngineNotInstalled(ServiceError):
    """The requested engine is not part of this installation."""

    status, title, slug, error_type = 501, "Engine not installed", "engine-not-installed", "Backend"


class NotExported(ServiceError):
    """The served graph lacks the requested output."""

    status, title, slug, error_type = 501, "Not exported", "not-exported", "Backend"


class NotVerified(NotExported):
    """The requested use failed the artifact's verification."""

    title, slug = "Not verified", "not-verified"


class EngineUnavailable(ServiceError):
    """The requested engine is down, or the service is draining."""

    status, title, slug, error_type = 503, "Engine unavailable", "engine-unavailable", "Unhealthy"
    retryable = True


class EngineOutOfMemory(EngineUnavailable):
    """Neither the batch nor half of it fits into memory."""

    title, slug, error_type = "Out of memory", "out-of-memory", "Backend"


class ModelNotLoaded(EngineUnavailable):
    """The requested model is not loaded now."""

    title, slug = "Model not loaded", "model-not-loaded"

    def __init__(
        self,
        model: str,
        why: str = "is not loaded",
        *,
        retry_after_seconds: int = 1,
    ) -> None:
        """Initialise with the model.

        Args:
            model: name of the model, or NAME@VERSION.
            why: state of the model, which follows its name in the message.
            retry_after_seconds: seconds after which the client should retry.

        """
        super().__init__(f"{model} {why}", retry_after_seconds=retry_after_seconds)
        self.model = model


class EngineTimeout(ServiceError):
    """The engine did not answer in time."""

    status, title, slug, error_type = 504, "Engine timed out", "engine-timeout", "Backend"
    retryable = True


class InsufficientMemory(ServiceError):
    """The model to load does not fit into the memory budget."""

    status, title, slug, error_type = 507, "Insufficient memory", "insufficient-memory", "Backend"

    def __init__(self, detail: str, public: str = "") -> None:
        """Initialise with the messages.

        Args:
            detail: message for admins, with the names and sizes of other models.
            public: message for all other clients; the same if empty.

        """
        super().__init__(detail)
        self._public = public or detail

    def public_error(self) -> InsufficientMemory:
        """Return the error for clients that are not admins."""
        return InsufficientMemory(self._public)
