"""Fields of /encode for long texts: spans, and what happens to a text beyond the model's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.api.native.span_fields import Spans
from service.api.native.texts import TextRequest
from service.inference.encoding import TextEncoding
from service.inference.tokenization.tokenizer import Options

Overflow = Literal["error", "truncate", "windows"]


class LongTextRequest(TextRequest):
    """Request whose texts may have spans, and may exceed the model's limit."""

    overflow: Overflow | None = Field(
        None,
        description="What happens to a text beyond the model's limit: an error (the default), "
        "truncation as by `truncate`, or overlapping windows.",
    )
    spans: Spans = Field(
        None,
        description="Start and end of each span of each input, in code points; the token vectors "
        "of each span are pooled to one vector (late chunking).",
    )

    @model_validator(mode="after")
    def _one_overflow(self) -> LongTextRequest:
        """Reject a `truncate` that contradicts `overflow`."""
        cuts = self.overflow == "truncate"
        if self.overflow and (self._keeps if cuts else self.truncate):
            raise PydanticCustomError(
                "overflow",
                'truncate {truncate} and overflow "{overflow}" exclude each other: leave out '
                "`truncate`",
                {"truncate": str(self.truncate).lower(), "overflow": self.overflow},
            )
        return self

    @property
    def _keeps(self) -> bool:
        """Whether `truncate` is set to false."""
        return "truncate" in self.model_fields_set and not self.truncate

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        truncate = self.truncate or self.overflow == "truncate"
        return replace(super().options, truncate=truncate, windows=self.overflow == "windows")

    def with_windows(self, encodings: Sequence[TextEncoding]) -> Sequence[TextEncoding]:
        """Return the encodings with the number of windows of each text, if windows were allowed."""
        if self.overflow != "windows":
            return encodings
        return [replace(own, windows=max(1, own.windows)) for own in encodings]
