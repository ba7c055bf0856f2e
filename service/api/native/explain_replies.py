"""Reply of `POST /explain` as pydantic models, for the OpenAPI document.

Notation: S_a and S_b tokens of the texts of a pair.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.api.native.replies import Usage
from service.api.wire.text_warnings import WarnedReply


class PairText(BaseModel):
    """Tokenised text of a pair."""

    tokens: list[str]
    token_ids: list[int]
    offsets: list[tuple[int, int]]
    truncated: bool


class TokenMatch(BaseModel):
    """Match between two texts, a summand of the similarity.

    For late-interaction models, a token of the first text and its best match in the second. For
    sparse encoders, a word in both vectors, and the token of each text that produced its weight.
    """

    query: int
    document: int
    score: float
    token_id: int | None = Field(None, description="Word's id, for sparse encoders.")


class ExplainSpan(BaseModel):
    """Word or sentence that is occluded as a whole."""

    start: int = Field(description="Offset in code points.")
    end: int
    tokens: list[int] = Field(description="Indices of the span's tokens.")


class ExplainBlock(BaseModel):
    """Patches of a picture that are occluded as a whole."""

    rows: tuple[int, int] = Field(description="First row, and the row after the last.")
    columns: tuple[int, int]
    tokens: list[int] = Field(description="Indices of the tokens of the patches.")


Spans = list[ExplainSpan] | list[ExplainBlock]


class ExplainResult(BaseModel):
    """Explanation of a pair; fields that are not requested are absent."""

    similarity: float
    texts: tuple[PairText, PairText]
    pairs: list[list[float]] | None = Field(None, description="`[S_a][S_b]`, sums to similarity.")
    completeness_error: float | None = Field(None, description="|sum − similarity|.")
    occlusion: tuple[list[float | None], list[float | None]] | None = Field(
        None,
        description="`[S_a]` and `[S_b]`, or one value for each of `spans`: loss of similarity "
        "without that token or span; null if not computed.",
    )
    spans: tuple[Spans, Spans] | None = Field(
        None,
        description="Spans of `occlusion`, unless these are the single tokens of two texts.",
    )
    decomposition: list[list[float]] | None = Field(
        None,
        description="`[S_a][S_b]` of input tokens, sums to similarity; null if not computed.",
    )
    decomposition_error: float | None = Field(None, description="|sum − similarity|.")
    heads: list[list[float | None]] | None = Field(
        None,
        description="`[layers][heads]`: loss of similarity with that head zeroed in both texts; "
        "null if not computed.",
    )
    partial: bool | None = Field(
        None,
        description="Whether the deadline passed before occlusion, decomposition and heads were "
        "complete.",
    )
    computed: dict[str, int] | None = Field(
        None,
        description="Number of computed values of `occlusion` and `heads`, and of computed "
        "decompositions (0 or 1).",
    )
    agreement: dict[str, float | None] | None = Field(
        None,
        description="Spearman correlation of each method's row and column sums with occlusion.",
    )
    matches: list[TokenMatch] | None = Field(
        None, description="Matches of a sparse encoder or a late-interaction model."
    )


class ExplainReply(WarnedReply):
    """JSON reply of `POST /explain`."""

    model: str
    backend: str
    results: list[ExplainResult]
    usage: Usage
