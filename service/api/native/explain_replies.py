"""The reply of `POST /explain` as pydantic models, for the OpenAPI document.

Notation: S_a and S_b tokens of the texts of a pair.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.api.native.replies import Usage
from service.api.wire.notices import NoticedReply


class PairText(BaseModel):
    """One text of a pair as the encoder saw it."""

    tokens: list[str]
    token_ids: list[int]
    offsets: list[tuple[int, int]]
    truncated: bool


class TokenMatch(BaseModel):
    """A product that is part of the similarity.

    Of a late-interaction model a token of the first text and the one of the second that it matched;
    of a sparse encoder a word of both vectors, and the token of each text that made its weight.
    """

    query: int
    document: int
    score: float
    token_id: int | None = Field(None, description="The word, of a sparse encoder.")


class ExplainSpan(BaseModel):
    """A word or sentence that is left out as a whole."""

    start: int = Field(description="Code points of the text before it.")
    end: int
    tokens: list[int] = Field(description="Indices of its tokens.")


class ExplainResult(BaseModel):
    """Why two texts are alike; a field that was not asked for is absent."""

    similarity: float
    texts: tuple[PairText, PairText]
    pairs: list[list[float]] | None = Field(None, description="`[S_a][S_b]`, sums to similarity.")
    completeness_error: float | None = Field(None, description="|sum − similarity|.")
    occlusion: tuple[list[float | None], list[float | None]] | None = Field(
        None,
        description="`[S_a]` and `[S_b]`, or as many as there are `spans`: the similarity less the "
        "one without that token or span; null where it is not computed.",
    )
    spans: tuple[list[ExplainSpan], list[ExplainSpan]] | None = Field(
        None, description="The spans of `occlusion`, where they are not single tokens."
    )
    decomposition: list[list[float]] | None = Field(
        None,
        description="`[S_a][S_b]` of input tokens, sums to similarity; null where it is not "
        "computed.",
    )
    decomposition_error: float | None = Field(None, description="|sum − similarity|.")
    heads: list[list[float | None]] | None = Field(
        None,
        description="`[layers][heads]`: the similarity less the one with that head switched off in "
        "both texts; null where it is not computed.",
    )
    partial: bool | None = Field(
        None,
        description="Whether the deadline came before all of occlusion, decomposition and heads "
        "was computed.",
    )
    computed: dict[str, int] | None = Field(
        None,
        description="Number of values of `occlusion` and `heads`, and of decompositions (0 or 1), "
        "that were computed.",
    )
    agreement: dict[str, float | None] | None = Field(
        None, description="Spearman of each method's row and column sums with occlusion."
    )
    matches: list[TokenMatch] | None = Field(
        None, description="Of a sparse encoder or a late-interaction model."
    )


class ExplainReply(NoticedReply):
    """The JSON reply of `POST /explain`."""

    model: str
    backend: str
    results: list[ExplainResult]
    usage: Usage
