"""Notices about a request's texts, in the JSON replies of all dialects."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.inference.notices import Notices


class NoticeCounts(BaseModel):
    """Number of texts with each notice; zero counts are absent."""

    truncated: int | None = Field(None, description="Truncated texts.")
    prompt_missing: int | None = Field(
        None, description="Texts without a prompt, if the model has prompts but no default prompt."
    )
    unknown_tokens: int | None = Field(
        None, description="Texts in which over a tenth of the tokens are the unknown token."
    )


class NoticedReply(BaseModel):
    """Reply with a field for notices."""

    notices: NoticeCounts | None = Field(
        None, description="Counts of notices, as in the headers; absent without notices."
    )


def notice_field(notices: Notices) -> dict[str, object]:
    """Return the field `notices` of a reply, or an empty mapping without notices."""
    counts = notices.counts()
    return {"notices": counts} if counts else {}
