"""Late interaction: a vector a token of queries and documents, and MaxSim of them. numpy only.

ColBERT (Khattab & Zaharia 2020, section 3, https://arxiv.org/abs/2004.12832): queries and documents
are encoded apart, each with a marker at its start; a query is filled up with [MASK] tokens, and
punctuation of documents has no vector.

Notation: Q vectors of a query, S tokens of a text, D features of a token's vector.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from model.artifact.vector_modules import Dense, Floats, Normalize, size_after

Ids = NDArray[np.int64]
Role = Literal["query", "document"]
TokenModule = Annotated[Dense | Normalize, Field(discriminator="kind")]
"""What computes a token's vector, in a row."""
ROLES: tuple[Role, ...] = ("query", "document")
BLOCK = 2**20
"""Products of token vectors that are in memory at once."""
NO_VECTORS = -1e9
"""Score of a document whose every token is left out, below any other, as sentence-transformers
has it."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class QueryExpansion(_Part):
    """Tokens that fill a query up (section 3.2, query augmentation)."""

    token_id: int = Field(ge=0)
    length: int = Field(gt=0)
    """Tokens of a query that was filled up."""
    fixed: bool = True
    """Whether no query has more."""
    attended: bool = False
    """Whether tokens attend to them; they attend to the query's own in any case."""


class LateInteraction(_Part):
    """How the tokens of a query or a document become vectors."""

    modules: tuple[TokenModule, ...]
    """From a token's hidden state to its vector."""
    query_tokens: PositiveInt | None = None
    """The most tokens of a query; as many as of any text when None."""
    document_tokens: PositiveInt | None = None
    """Likewise of a document."""
    expansion: QueryExpansion | None = None
    skipped_ids: tuple[int, ...] = ()
    """Tokens that have no vector."""
    skipped_in: tuple[Role, ...] = ("document",)
    """Where they have none."""

    @property
    def unseen(self) -> bool:
        """Whether queries are filled up with tokens that no token attends to."""
        return self.expansion is not None and not self.expansion.attended

    def vector_size(self, hidden_size: int) -> int | None:
        """D; None where the modules do not fit the encoder."""
        return size_after(self.modules, hidden_size)

    def missing(self, tokens: int) -> int:
        """Tokens that fill up a query of so many."""
        return max(0, self.expansion.length - tokens) if self.expansion else 0

    def unseen_of(self, tokens: int) -> range:
        """The numbers of the tokens that no token attends to, of a query of so many filled up."""
        return range(tokens, tokens + self.missing(tokens) if self.unseen else tokens)

    def filled_up(self, input_ids: Ids) -> Ids:
        """A query's token ids `[S]` and those that fill it up."""
        if self.expansion is None:
            return input_ids
        more = np.full(self.missing(len(input_ids)), self.expansion.token_id, np.int64)
        return np.concatenate([input_ids, more])

    def kept(self, vectors: Floats, input_ids: Ids, role: Role) -> Floats:
        """The vectors `[S, D]` of a text without those of tokens that are left out."""
        if role not in self.skipped_in or not self.skipped_ids:
            return vectors
        return vectors[~np.isin(input_ids, self.skipped_ids)]


def max_sim(query: Floats, document: Floats) -> float:
    """Σ over a query's vectors of the largest product with any of a document (section 3.3, eq. 3).

    Args:
        query: `[Q, D]`.
        document: `[S, D]`; of a long one, some tokens at a time.

    """
    if not len(document):
        return NO_VECTORS
    step = max(1, BLOCK // max(1, len(query)))
    largest = np.full(len(query), -np.inf, np.float32)
    for start in range(0, len(document), step):
        products = query @ document[start : start + step].T
        np.maximum(largest, products.max(axis=1), out=largest)
    return float(largest.sum(dtype=np.float32))
