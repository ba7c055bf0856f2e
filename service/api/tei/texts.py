"""The fields that requests in text-embeddings-inference's forms share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.native.texts import MAX_FIELDS
from service.api.route import ModelRequest
from service.inference.excerpt import Direction
from service.inference.tokenizer import Options


class TeiRequest(ModelRequest):
    """What every request has; unknown fields are ignored, as TEI does."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    truncate: bool | None = Field(
        None, description="Cut a text that is too long, instead of refusing it."
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] = Field(
        "Right", description="Which side is cut."
    )

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise PydanticCustomError("fields", "there are too many fields")
        return fields

    def options(self, prompt_name: str | None = None) -> Options:
        """How the texts are tokenised."""
        direction: Direction = "left" if self.truncation_direction in ("Left", "left") else "right"
        return Options(bool(self.truncate), direction, prompt_name)
