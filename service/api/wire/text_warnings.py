"""Warnings about a request's texts, in the JSON replies of all dialects."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.inference.text_warnings import Warnings


class WarningCounts(BaseModel):
    """Number of texts with each warning; zero counts are absent."""

    truncated: int | None = Field(None, description="Truncated texts.")
    prompt_missing: int | None = Field(
        None, description="Texts without a prompt, if the model has prompts but no default prompt."
    )
    unknown_tokens: int | None = Field(
        None, description="Texts in which over a tenth of the tokens are the unknown token."
    )


class WarnedReply(BaseModel):
    """Reply with a field for warnings."""

    warnings: WarningCounts | None = Field(
        None, description="Counts of warnings, as in the headers; absent without warnings."
    )


def warning_field(warnings: Warnings) -> dict[str, object]:
    """Return the field `warnings` of a reply, or an empty mapping without warnings."""
    counts = warnings.counts()
    return {"warnings": counts} if counts else {}
