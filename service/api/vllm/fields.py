"""The fields that requests and replies in vLLM's forms share."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, Field

from service.api.native.texts import LenientRequest
from service.api.wire.notices import notice_field
from service.errors import Unprocessable
from service.inference.encoding import PreparedTexts
from service.inference.timings import Timings
from service.inference.tokenization.excerpt import Direction
from service.inference.tokenization.shortening import shorten
from service.inference.tokenization.tokenizer import Options

WHOLE_CONTEXT = -1
"""`truncate_prompt_tokens`: as many tokens as fit the model."""


class VllmRequest(LenientRequest):
    """What every request has."""

    truncate_prompt_tokens: int | None = Field(
        None,
        ge=WHOLE_CONTEXT,
        description="A text that is longer is cut to so many tokens, or with -1 to what fits; "
        "without, one that does not fit is refused.",
    )
    truncation_side: Direction | None = Field(
        None, description="Which side is cut; the right one by default."
    )
    use_activation: bool | None = Field(
        None, description="Whether logits become probabilities and vectors unit vectors."
    )

    @property
    def direction(self) -> Direction:
        """Which side is cut."""
        return self.truncation_side or "right"

    def options(self, naming: str, prompt_name: str | None = None) -> Options:
        """How texts are tokenised, before they are cut to what was asked for.

        Args:
            naming: what an input is called in a refusal.
            prompt_name: of the checkpoint's prompts.

        """
        truncate = self.truncate_prompt_tokens is not None
        return Options(truncate, self.direction, prompt_name, naming=naming)

    def check_length(self, max_tokens: int) -> None:
        """Refuse a length that no text of the model may have.

        Args:
            max_tokens: that fit the model.

        Raises:
            Unprocessable: more, or none, are asked for.

        """
        asked = self.truncate_prompt_tokens
        if asked is not None and (asked == 0 or asked > max_tokens):
            raise Unprocessable(
                f"truncate_prompt_tokens: {asked} is not in 1 … {max_tokens}; -1 is what fits"
            )

    async def cut(self, prepared: PreparedTexts) -> None:
        """Cut tokenised texts to the length that was asked for.

        Raises:
            InputTooLong: it leaves no room beside special tokens.

        """
        asked = self.truncate_prompt_tokens
        if asked is None or asked == WHOLE_CONTEXT:
            return
        await shorten(prepared.texts, asked, self.direction)
        prepared.recount()


class Usage(BaseModel):
    """Tokens of a request, in all of OpenAI's fields."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0] = 0
    prompt_tokens_details: None = None


def envelope(request: Request, kind: str, model: str, timings: Timings) -> dict[str, Any]:
    """The fields that stand beside the data of every reply.

    Args:
        request: which is answered.
        kind: what the id begins with.
        model: name of the one that answers.
        timings: of the request.

    """
    tokens, usage = timings.tokens, {"completion_tokens": 0, "prompt_tokens_details": None}
    return {
        "id": f"{kind}-{request.state.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, **usage},
        **notice_field(timings.notices),
    }
