"""Errors that clients receive; each class has its HTTP status, and its type in TEI's spelling.

The dialect of the route determines their form on the wire: see `service.api.dialects`.
"""

from __future__ import annotations

import re
from typing import ClassVar


class ServiceError(Exception):
    """An unexpected error inside the service; base of all errors that clients receive."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    """Title of the problem; by default the words of the class's name."""
    slug: ClassVar[str] = "internal"
    """Name of the problem in its address; by default the title's words."""
    error_type: ClassVar[str] = "Backend"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, status: int | None = None, error_type: str | None = None) -> None:
        """Set what a class does not inherit."""
        own = vars(cls)
        cls.status, cls.error_type = status or cls.status, error_type or cls.error_type
        cls.title = own.get("title") or re.sub(r"\B[A-Z]", r" \g<0>", cls.__name__).capitalize()
        cls.slug = own.get("slug") or cls.title.lower().replace(" ", "-")

    def __init__(
        self, detail: str, *, retry_after_seconds: int | None = None, reason: str = ""
    ) -> None:
        """Initialise with the message for the client, in which unprintable characters are escaped.

        `reason` is the reason of the refusal in the metrics; the class's slug if empty.
        """
        self.detail = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in detail)
        super().__init__(self.detail)
        self.retry_after_seconds = retry_after_seconds
        self.reason = reason or self.slug.replace("-", "_")


class InvalidRequest(ServiceError, status=400, error_type="Validation"):
    """The body is not valid JSON in UTF-8 without a byte order mark, or has a lone surrogate."""


class EmptyInputs(ServiceError, status=400, error_type="Empty"):
    """A list of texts is empty, in dialects that refuse it with a status of its own."""


class Unauthorized(ServiceError, status=401, error_type="Validation"):
    """The request has no key, or a wrong one."""

    def __init__(self, detail: str, *, prompts: bool = True) -> None:
        """Initialise with the message for the client.

        `prompts` makes a browser ask for a password; its dialog would cover a page that asks.
        """
        super().__init__(detail)
        self.prompts = prompts


class Forbidden(ServiceError, status=403, error_type="Validation"):
    """The request's key may not change models or start an export, or no admin key is set."""


class UnknownModel(ServiceError, status=404, error_type="Validation"):
    """The request names a model that is not served, or a route that does not exist."""


class RequestTimeout(ServiceError, status=408, error_type="Validation"):
    """The client took too long to send the request."""

    title, slug, retryable = "Request timed out", "request-timeout", True


class AnotherModel(ServiceError, status=409, error_type="Validation"):
    """The model has another fingerprint than the request expects."""


class ModelBusy(ServiceError, status=409, error_type="Validation"):
    """Another load or unload of the same model is running."""

    retryable = True


class BodyTooLarge(ServiceError, status=413, error_type="Validation"):
    """The request's body exceeds the limit."""


class ReplyTooLarge(ServiceError, status=413, error_type="Validation"):
    """The requested reply would exceed the limit."""


class RequestTooLarge(ServiceError, status=413, error_type="Validation"):
    """The request alone would take more memory than all requests may."""


class UnsupportedMediaType(ServiceError, status=415, error_type="Validation"):
    """The body's content type or encoding is not supported."""


class MisdirectedRequest(ServiceError, status=421, error_type="Validation"):
    """The request is for another host."""

    slug = "misdirected"


class Unprocessable(ServiceError, status=422, error_type="Validation"):
    """A field, layer, head, token, prompt or number of inputs is not one that the model takes."""

    title, slug = "Unprocessable request", "unprocessable"


class InputTooLong(Unprocessable, error_type="Tokenizer"):
    """A text has more tokens or characters than the limit."""


class ModelNotLoadable(Unprocessable, error_type="Backend"):
    """The model to load cannot be opened or started, or failed its golden texts."""


class NoTaskHead(ServiceError, status=424):
    """The model lacks the task head that the request needs."""


class NoEmbeddings(NoTaskHead):
    """The model does not compute vectors of texts."""


class HeaderFieldsTooLarge(ServiceError, status=431, error_type="Validation"):
    """The request line and headers exceed the limits."""

    title = "Head too large"


class Overloaded(ServiceError, status=429, error_type="Overloaded"):
    """The queue or the memory of requests is full, or the predicted wait is too long."""

    retryable = True


class DeadlinePassed(Overloaded):
    """The request's deadline passed before any of it was computed."""


class EngineFailed(ServiceError, status=500):
    """The engine raised an error, or its output has a wrong shape or is not finite."""


class EngineNotInstalled(ServiceError, status=501):
    """The requested engine is not part of this installation."""


class NotExported(ServiceError, status=501):
    """The model or its export lacks the requested output."""


class NotVerified(NotExported):
    """The requested use failed the artifact's verification."""


class EngineUnavailable(ServiceError, status=503, error_type="Unhealthy"):
    """The engine is down, or the service is stopping."""

    retryable = True


class EngineOutOfMemory(EngineUnavailable, error_type="Backend"):
    """Neither the batch nor half of it fits into memory."""

    title = "Out of memory"


class ModelNotLoaded(EngineUnavailable):
    """The requested model is not loaded now."""

    def __init__(
        self,
        model: str,
        why: str = "is not loaded",
        *,
        retry_after_seconds: int = 1,
    ) -> None:
        """Initialise with the model, as NAME or NAME@VERSION, and its state."""
        super().__init__(f"{model} {why}", retry_after_seconds=retry_after_seconds)
        self.model = model


class EngineTimeout(ServiceError, status=504):
    """The engine did not answer in time."""

    title, slug, retryable = "Engine timed out", "engine-timeout", True


class InsufficientMemory(ServiceError, status=507):
    """The model to load does not fit into the memory budget."""

    def __init__(self, detail: str, public: str = "") -> None:
        """Initialise with the message for admins, and the `public` one; the same if empty.

        Only admins get the names and sizes of other models.
        """
        super().__init__(detail)
        self._public = public or detail

    def public_error(self) -> InsufficientMemory:
        """Return the error for clients that are not admins."""
        return InsufficientMemory(self._public)
