"""Fields, headers and errors shared by the routes in text-embeddings-inference's format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import orjson
from pydantic import Field
from starlette.responses import Response

from service.api.requests import LenientRequest
from service.api.wire.replies import error_reply, problems_in_form
from service.api.wire.route import ApiExchange
from service.api.wire.schemas import named
from service.errors import NoTaskHead, ServiceError, Unauthorized
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.tokenizer import Options
from service.inference.tokenization.truncation import Direction


def error_response(error: ServiceError, _: str) -> Response:
    """Return the reply of an error; the body is empty if the API key is wrong, as in TEI."""
    body = {"error": error.detail, "error_type": error.error_type}
    content = b"" if error.status == Unauthorized.status else orjson.dumps(body)
    return error_reply(error, content, "application/json")


_ERROR_TYPE = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]
ERRORS = problems_in_form(named("TeiError", {"error": str, "error_type": _ERROR_TYPE}))
ERRORS[NoTaskHead.status] = ERRORS[404] | {"description": "The model has no such task head"}
del ERRORS[Unauthorized.status]["content"]
"""Error replies of a route, for the OpenAPI document."""


class TeiRequest(LenientRequest):
    """Fields of every request with texts to encode."""

    truncate: bool | None = Field(
        None,
        description="Truncate long texts instead of rejecting them; by default the service's "
        "setting `auto_truncate`.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="Side to cut."
    )

    def options(
        self, exchange: ApiExchange, prompt_name: str | None = None, naming: str = "inputs[{}]"
    ) -> Options:
        """Return the tokenisation options of the texts."""
        truncate = self.truncate
        if truncate is None:
            truncate = exchange.service.settings.auto_truncate
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(truncate, direction, prompt_name, naming=naming)


def add_compute_headers(
    response: Response, exchange: ApiExchange, inputs: Sequence[Input]
) -> Response:
    """Add TEI's headers of device, time and characters to a response, and return it.

    Token ids count as characters, as in TEI.
    """
    provider = exchange.model.inference.engines.default.engine.provider
    device = "gpu" if "CUDA" in provider else "cpu"
    seconds = time.monotonic() - exchange.received
    response.raw_headers += [
        (b"x-compute-type", f"{device}+optimized".encode()),
        (b"x-compute-time", b"%d" % round(1000 * seconds)),
        (b"x-compute-characters", b"%d" % characters(inputs)),
    ]
    return response
