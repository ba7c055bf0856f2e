"""Late interaction: a vector per token of queries and documents, scored by MaxSim. numpy only.

ColBERT (Khattab & Zaharia 2020, section 3, https://arxiv.org/abs/2004.12832): queries and documents
are encoded separately, each with a marker at its start; a query is filled up with [MASK] tokens,
and punctuation of documents has no vector.

Notation: Q vectors of a query, S tokens of a text, D features of a token's vector.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from model.config.encoder import Part
from model.numerics.vector_modules import Dense, Floats, Normalize, size_after

Ids = NDArray[np.int64]
Role = Literal["query", "document"]
TokenModule = Annotated[Dense | Normalize, Field(discriminator="kind")]
"""Module that computes token vectors; modules are applied in sequence."""
ROLES: tuple[Role, ...] = ("query", "document")
BLOCK = 2**20
"""Maximum number of products of token vectors in memory at once."""
NO_VECTORS = -1e9
"""Score of a document without vectors, below any other score, as in sentence-transformers."""


class QueryExpansion(Part):
    """Expansion tokens of a query (section 3.2, query augmentation)."""

    token_id: int = Field(ge=0)
    length: int = Field(gt=0)
    """Tokens of a query after expansion."""
    fixed: bool = True
    """Whether longer queries are truncated to `length`."""
    attended: bool = False
    """Whether other tokens attend to expansion tokens, which attend to the query in any case."""


class LateInteraction(Part):
    """Computation of token vectors of queries and documents."""

    modules: tuple[TokenModule, ...]
    """Modules that turn a token's hidden state into its vector."""
    query_tokens: PositiveInt | None = None
    """Maximum tokens of a query; the limit of all texts when None."""
    document_tokens: PositiveInt | None = None
    """Maximum tokens of a document; the limit of all texts when None."""
    expansion: QueryExpansion | None = None
    skipped_ids: tuple[int, ...] = ()
    """Ids of tokens without a vector."""
    skipped_in: tuple[Role, ...] = ("document",)
    """Roles in which `skipped_ids` have no vector."""
    first_token: int = Field(0, ge=0)
    """Index of the first token with a vector."""

    @property
    def unseen(self) -> bool:
        """Whether queries get expansion tokens that are masked as keys."""
        return self.expansion is not None and not self.expansion.attended

    def vector_size(self, hidden_size: int) -> int | None:
        """Return D, the size of a token vector; None if the modules do not fit the encoder."""
        return size_after(self.modules, hidden_size)

    def missing(self, tokens: int) -> int:
        """Return the number of expansion tokens of a query of `tokens` tokens."""
        return max(0, self.expansion.length - tokens) if self.expansion else 0

    def unseen_of(self, tokens: int) -> range:
        """Return the indices of a query's expansion tokens that are masked as keys.

        `tokens` is the number of the query's own tokens.
        """
        return range(tokens, tokens + self.missing(tokens) if self.unseen else tokens)

    def filled_up(self, input_ids: Ids) -> Ids:
        """Return a query's token ids `[S]`, followed by its expansion tokens."""
        if self.expansion is None:
            return input_ids
        expansion = np.full(self.missing(len(input_ids)), self.expansion.token_id, np.int64)
        return np.concatenate([input_ids, expansion])

    def kept(self, vectors: Floats, input_ids: Ids, role: Role) -> Floats:
        """Return the vectors `[S, D]` of a text, except the vectors of skipped tokens."""
        vectors, input_ids = vectors[self.first_token :], input_ids[self.first_token :]
        if role not in self.skipped_in or not self.skipped_ids:
            return vectors
        return vectors[~np.isin(input_ids, self.skipped_ids)]


def max_sim(query: Floats, document: Floats) -> float:
    """Return MaxSim (section 3.3, eq. 3): Σ over query vectors of the largest product.

    `[Q, D]`, `[S, D]`; a long document is computed in blocks of tokens.
    """
    if not len(document):
        return NO_VECTORS
    step = max(1, BLOCK // max(1, len(query)))
    largest = np.full(len(query), -np.inf, np.float32)
    for start in range(0, len(document), step):
        products = query @ document[start : start + step].T
        np.maximum(largest, products.max(axis=1), out=largest)
    return float(largest.sum(dtype=np.float32))
