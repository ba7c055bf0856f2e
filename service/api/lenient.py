"""Requests of dialects that ignore fields they do not know."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from service.api.native.texts import MAX_FIELDS
from service.api.route import ModelRequest
from service.inference.core import Inference


class LenientRequest(ModelRequest):
    """Nothing is converted, and unknown fields are ignored, unless there are very many."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise PydanticCustomError("fields", "there are too many fields")
        return fields


def without_prompt(inference: Inference) -> str | None:
    """The `prompt_name` of a text without a prompt, for dialects that know none."""
    return None if inference.sentence.default_prompt_name is None else ""
