"""Options of an explanation, and the check of whether a model supports them."""

from __future__ import annotations

from dataclasses import dataclass

from model.numerics.pooling import PoolingModes, PoolingName
from model.runtimes.capabilities import Decomposition
from service.errors import NoEmbeddings, Unprocessable
from service.inference.core import Inference
from service.inference.explanation.spans import SpanKind


@dataclass(frozen=True)
class ExplainOptions:
    """Analyses that a caller requests of each pair of texts."""

    layer: int
    """Hidden state that is pooled, 0 … L."""
    pooling: PoolingName | None
    """Pooling mode; the checkpoint's own if None."""
    pairs: bool
    """Whether to compute the share of each pair of tokens."""
    occlusion: bool
    """Whether to compute the loss of similarity without each span."""
    decomposition: bool
    """Whether to compute the share of each pair of input tokens."""
    heads: bool
    """Whether to compute the loss of similarity without each head."""
    spans: SpanKind = "tokens"
    """Kind of the spans that occlusion masks as a whole."""
    top: int | None = None
    """Number of spans of each text to occlude, the most promising first; all if None."""
    block: int = 1
    """Patches along the edge of the squares of a picture that occlusion masks as a whole."""


def check_explainable(inference: Inference, options: ExplainOptions) -> None:
    """Raise if the model does not support the requested analyses.

    Raises:
        NoEmbeddings: the model does not compute vectors of texts.
        Unprocessable: shares are requested of vectors that are not a sum over tokens.
        NotExported: a decomposition or an ablated head of a static embedding; or a decomposition
            of a serving-only artifact.
        NotVerified: a use that failed the artifact's verification.

    """
    task = inference.manifest.task
    if task is not None:
        raise NoEmbeddings(
            f"/explain does not explain {inference.manifest.model}: ask /rank for the scores of a "
            "reranker or a hybrid model, or serve an embedding model, a sparse encoder or a "
            "late-interaction model"
        )
    inference.require_use("vectors")
    if options.pairs or options.layer != inference.config.num_hidden_layers:
        inference.require_use("heads")
    mode = options.pooling or inference.sentence.pooling
    if options.pairs and mode != "mean":
        raise Unprocessable(
            f"pairs are shares of means over tokens, and this is pooling {_named(mode)}: ask for "
            'pooling "mean", or leave pairs out of `include`'
        )
    if (options.pairs or options.decomposition) and not inference.vectors.additive(options.pooling):
        raise Unprocessable(
            "this model has modules after pooling that are not linear, through which the shares of "
            'tokens do not add up: ask for include ["occlusion"]'
        )
    if options.decomposition:
        inference.require(Decomposition)
    if options.heads:
        inference.require_head_outputs()


def _named(mode: PoolingModes) -> str:
    return mode if isinstance(mode, str) else " + ".join(mode)
