"""Text around a query and a document, from the chat template of a reranker. Without torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class PairTemplate(BaseModel):
    """Text that a chat template puts around the query and the document of a pair."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    before: str = ""
    """Text before the query, with the instruction."""
    between: str = Field(min_length=1)
    """Text between the query and the document."""
    after: str = ""
    """Text after the document."""

    def filled(self, query: str, document: str) -> str:
        """Return the text that the model reads."""
        return f"{self.before}{query}{self.between}{document}{self.after}"
