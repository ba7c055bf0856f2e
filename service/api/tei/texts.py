"""The fields that requests in text-embeddings-inference's forms share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from service.api.native.texts import LenientRequest
from service.api.wire.route import model_of, service_of
from service.inference.tokenization.excerpt import Direction
from service.inference.tokenization.inputs import Input, characters
from service.inference.tokenization.tokenizer import Options


class TeiRequest(LenientRequest):
    """What every request with texts to compute has."""

    truncate: bool | None = Field(
        None,
        description="Cut a text that is too long, instead of refusing it; the service's setting "
        "`auto_truncate` by default.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="Which side is cut."
    )

    def options(
        self, request: Request, prompt_name: str | None = None, naming: str = "inputs[{}]"
    ) -> Options:
        """How the texts are tokenised."""
        truncate = self.truncate
        if truncate is None:
            truncate = service_of(request).settings.auto_truncate
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(truncate, direction, prompt_name, naming=naming)


def tell_compute(response: Response, request: Request, inputs: Sequence[Input]) -> Response:
    """The headers that TEI has beside those of every route: device, time and characters.

    Args:
        response: to the request.
        request: which model answered.
        inputs: that were computed; token ids count as characters, as TEI counts them.

    """
    provider = model_of(request).inference.engines.default.engine.provider
    device = "gpu" if "CUDA" in provider else "cpu"
    seconds = time.monotonic() - request.state.received
    response.headers["x-compute-type"] = f"{device}+optimized"
    response.headers["x-compute-time"] = str(round(1000 * seconds))
    response.headers["x-compute-characters"] = str(characters(inputs))
    return response
