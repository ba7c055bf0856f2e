"""Vector settings of an artifact: pooling, later modules, length limit, prompts. Without torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from model.config.encoder import Part
from model.numerics.pooling import PoolingModes, modes_of
from model.numerics.vector_modules import VectorModule, size_after

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan", "maxsim", "meanmaxsim"]
"""Similarity functions; the last two are for late interaction only."""


class PairTemplate(Part):
    """Text that a chat template puts around the query and the document of a pair."""

    before: str = ""
    """Text before the query, with the instruction."""
    between: str = Field(min_length=1)
    """Text between the query and the document."""
    after: str = ""
    """Text after the document."""

    def filled(self, query: str, document: str) -> str:
        """Return the text that the model reads."""
        return f"{self.before}{query}{self.between}{document}{self.after}"


class SentenceConfig(Part):
    """Modules that turn a text into one vector, and the checkpoint's prompts."""

    pooling: PoolingModes = "mean"
    modules: tuple[VectorModule, ...] = ()
    """Modules between pooling and a final normalisation."""
    normalize: bool = False
    """Whether the last module normalises to unit length."""
    max_length: int = Field(gt=0)
    """Maximum tokens of one input, including special tokens."""
    prompts: dict[str, str] = Field(default_factory=dict)
    default_prompt_name: str | None = None
    """Name of the prompt for requests that name none."""
    tasks: tuple[str, ...] = ()
    """Tasks, in the order of their segments 1 … K: the prompt of a task selects its segment."""
    include_prompt: bool = True
    """Whether pooling includes the tokens of a prompt."""
    truncate_dim: PositiveInt | None = None
    """Default number of leading features to keep; all when None."""
    matryoshka_dims: tuple[PositiveInt, ...] = ()
    """Numbers of leading features that the checkpoint was trained to be truncated to."""
    similarity_fn_name: SimilarityName = "cosine"
    """Similarity function that the vectors were trained for."""
    lowercase: bool = False
    """Whether texts are lower-cased before tokenization."""
    pair_templates: dict[str, PairTemplate] = Field(default_factory=dict)
    """Text around a pair by the name of the prompt, "" for no prompt; empty without a chat
    template."""
    end_token_id: int | None = None
    """Id of the token whose first occurrence is the last token that is read, as CLIP's text tower
    pools it and later tokens cannot change its state. None if all tokens of a text are read."""
    pad_token_id: int | None = None
    """Id of the token that fills up each text to `max_length` tokens and is attended, as SigLIP's
    text tower was trained. None without such padding."""

    def vector_size(self, hidden_size: int, pooling: PoolingModes | None = None) -> int | None:
        """Return the size of a text's vector before truncation; None if modules do not fit it."""
        own = self.pooling if pooling is None else pooling
        return size_after(self.modules, len(modes_of(own)) * hidden_size)
