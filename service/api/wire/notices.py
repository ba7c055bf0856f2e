"""The notices about a request's texts, as the dialects' JSON replies have them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from service.inference.notices import Notices


class NoticeCounts(BaseModel):
    """Numbers of texts; a number of 0 is absent."""

    truncated: int | None = Field(None, description="Texts that were cut.")
    prompt_missing: int | None = Field(
        None, description="Texts without a prompt, of a model that names prompts and no default."
    )
    unknown_tokens: int | None = Field(
        None, description="Texts in which more than a tenth of the tokens are the unknown token."
    )


class NoticedReply(BaseModel):
    """A reply with a field for notices."""

    notices: NoticeCounts | None = Field(
        None, description="Absent without notices; the same numbers as in the headers."
    )


def notice_field(notices: Notices) -> dict[str, Any]:
    """Return the field `notices` of a reply, or nothing where there are none."""
    counts = notices.counts()
    return {"notices": counts} if counts else {}
