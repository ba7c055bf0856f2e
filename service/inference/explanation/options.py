"""What can be asked of two texts' similarity, and which models it can be asked of."""

from __future__ import annotations

from dataclasses import dataclass

from model.artifact.pooling import PoolingModes, PoolingName
from service.errors import NoEmbeddings, Unprocessable
from service.inference.core import Inference
from service.inference.explanation.spans import SpanKind


@dataclass(frozen=True)
class ExplainOptions:
    """What a caller wants to know of each pair of texts."""

    layer: int
    """Hidden state that is pooled, 0 … L."""
    pooling: PoolingName | None
    """The checkpoint's own when None."""
    pairs: bool
    """Whether the share of each pair of tokens is wanted."""
    occlusion: bool
    """Whether it is wanted what each token is worth."""
    decomposition: bool
    """Whether the share of each pair of input tokens is wanted."""
    heads: bool
    """Whether it is wanted what each head is worth."""
    spans: SpanKind = "tokens"
    """The spans that occlusion masks as a whole."""
    top: int | None = None
    """Number of spans of each text that are occluded, the most promising ones; all when None."""


def check_explainable(inference: Inference, options: ExplainOptions) -> None:
    """Refuse what the model's vectors do not give, before anything is done.

    Raises:
        NoEmbeddings: the model gives no vectors of texts.
        Unprocessable: shares of vectors that are no sum over tokens.
        NotExported: a foreign graph has no other layer than the last, and is not decomposed; nor
            is a serving-only artifact; nor are its heads switched off. Or a use that failed the
            artifact's verification.

    """
    task = inference.manifest.task
    if task is not None:
        raise NoEmbeddings(
            f"{inference.manifest.model} gives no vectors of texts, whose cosine could be "
            "explained: serve an embedding model, a sparse encoder or a late-interaction model"
        )
    inference.require_layer(options.layer)
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
        inference.require_decomposition()
    if options.heads:
        inference.require_head_outputs()


def _named(mode: PoolingModes) -> str:
    return mode if isinstance(mode, str) else " + ".join(mode)
