"""Fields of /encode for long texts: spans, chunks, and what happens beyond the model's limit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from model.artifact.sentence import SentenceConfig
from service.api.native.span_fields import Spans, check_spans, check_texts
from service.api.native.texts import StrictRequest, TextRequest
from service.errors import Unprocessable
from service.inference.chunks import ChunkKind, ChunkOptions, chunks_of
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.text_spans import check_pooling, spans_of
from service.inference.tokenization.tokenizer import Options

Overflow = Literal["error", "truncate", "windows"]


class Chunk(StrictRequest):
    """Chunks into which each input is cut."""

    by: ChunkKind = Field(
        description="Where chunks end if they can: between words, sentences or paragraphs."
    )
    size: int = Field(256, ge=1, description="Maximum tokens of a chunk, without special tokens.")
    overlap: int | None = Field(
        None,
        ge=0,
        description="Maximum tokens that a chunk repeats of the one before it, at most half of "
        "`size`; an eighth by default.",
    )
    late: bool = Field(
        True,
        description="Whether the token vectors of the whole text are pooled; else each chunk is "
        "encoded alone.",
    )

    @model_validator(mode="after")
    def _smaller_overlap(self) -> Chunk:
        """Reject an overlap of more than half a chunk, which would repeat all text."""
        if 2 * (self.overlap or 0) > self.size:
            raise PydanticCustomError(
                "overlap",
                "chunk: overlap {overlap} is more than half of size {size}",
                {"overlap": self.overlap, "size": self.size},
            )
        return self

    @property
    def options(self) -> ChunkOptions:
        """Kind and sizes of the chunks."""
        overlap = self.size // 8 if self.overlap is None else self.overlap
        return ChunkOptions(self.by, self.size, overlap)


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

    chunk: Chunk | None = Field(
        None, description="Cut each input into chunks, whose vectors are returned as of `spans`."
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
    def alone(self) -> ChunkOptions | None:
        """Chunks that are encoded alone; None if there are none."""
        return self.chunk.options if self.chunk and not self.chunk.late else None

    @property
    def _keeps(self) -> bool:
        """Whether `truncate` is set to false."""
        return "truncate" in self.model_fields_set and not self.truncate

    @property
    def options(self) -> Options:
        """Tokenisation options of the texts."""
        truncate = self.truncate or self.overflow == "truncate"
        return replace(super().options, truncate=truncate, windows=self.overflow == "windows")

    def check_long_texts(self, options: EncodeOptions, sentence: SentenceConfig) -> None:
        """Raise if spans or chunks do not fit the other fields."""
        if self.spans is not None and self.chunk:
            raise Unprocessable("spans and chunk exclude each other: leave one out")
        if self.spans is not None:
            check_spans(self.spans, self.inputs, options, sentence)
        if self.chunk:
            whole = ("outputs", "overflow", "truncate")
            if self.alone and (given := [name for name in whole if name in self.model_fields_set]):
                raise Unprocessable(
                    f"{given[0]} is of a pass over the whole text, and with `late` false each "
                    f"chunk is encoded alone: leave it out"
                )
            check_texts(self.inputs)
            if not self.alone:
                check_pooling(options.pooling or sentence.pooling)

    async def with_spans(self, options: EncodeOptions, prepared: PreparedTexts) -> EncodeOptions:
        """Return the options with the spans or chunks, which are found in a thread."""
        if self.spans is not None:
            spans = await asyncio.to_thread(spans_of, self.texts, self.spans, prepared.texts)
        elif self.chunk:
            cut = self.chunk.options
            spans = await asyncio.to_thread(chunks_of, self.texts, prepared.texts, cut)
        else:
            return options
        return replace(options, spans=spans)

    @property
    def texts(self) -> list[str]:
        """Inputs that are single texts, as all are beside spans and chunks."""
        return [given for given in self.inputs if isinstance(given, str)]

    def with_windows(self, encodings: Sequence[TextEncoding]) -> Sequence[TextEncoding]:
        """Return the encodings with the number of windows of each text, if windows were allowed."""
        if self.overflow != "windows":
            return encodings
        return [replace(own, windows=max(1, own.windows)) for own in encodings]
