"""Token vectors and pooled vectors from a text's hidden states."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.numerics.pooling import pool
from service.engines.contract import Output, Pooling, TextTask
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding

INLINE_VECTORS = 32
"""Maximum number of vectors that are normalised on the event loop; more use a thread."""


@dataclass(frozen=True)
class LayersReduction:
    """Function from a text's hidden states of several layers to the requested arrays."""

    options: EncodeOptions
    pooling: Pooling
    """Pooling of every layer; its own layer is ignored."""

    def __call__(self, output: Output) -> TextEncoding:
        """Return the states and their unnormalised pooled vectors, in the computing thread."""
        asked, options = self.pooling, self.options
        return TextEncoding(
            np.stack(output.hidden) if options.tokens else None,
            np.stack([pool(state, asked.mode, asked.first_token) for state in output.hidden])
            if options.pooled
            else None,
        )


def poolings_of(
    prepared: PreparedTexts, options: EncodeOptions, sentence: SentenceConfig
) -> list[Pooling]:
    """Return the pooling of each text, at the last requested hidden state."""
    mode, layer = options.pooling or sentence.pooling, options.states[-1]
    return [Pooling(layer, mode, text.first_pooled(sentence)) for text in prepared.texts]


def tasks_of(
    prepared: PreparedTexts, options: EncodeOptions, poolings: Sequence[Pooling]
) -> list[TextTask]:
    """Return the forward pass of each text; states of several layers are pooled afterwards."""
    several = bool(options.layers)
    return [
        TextTask(
            text.input_ids,
            text.segment_ids,
            hidden_layers=options.states if options.tokens or several else (),
            pooling=pooling if options.pooled and not several else None,
            ablated=options.ablated,
        )
        for text, pooling in zip(prepared.texts, poolings, strict=True)
    ]


def reductions_of(
    options: EncodeOptions, poolings: Sequence[Pooling]
) -> list[Callable[[Output], TextEncoding]]:
    """Return the function from each text's output to the requested arrays."""
    if options.layers:
        return [LayersReduction(options, pooling) for pooling in poolings]
    return [partial(_of_one_layer, options)] * len(poolings)


def _of_one_layer(options: EncodeOptions, output: Output) -> TextEncoding:
    return TextEncoding(output.hidden[0] if options.tokens else None, output.pooled)


async def finished(
    encodings: Sequence[TextEncoding],
    options: EncodeOptions,
    vectors: TextVectors,
    *,
    modules: bool,
) -> list[TextEncoding]:
    """Return the texts' arrays with pooled vectors cut and normalised by the options.

    Args:
        encodings: arrays with raw pooled vectors.
        options: options of the arrays.
        vectors: vector pipeline of the artifact.
        modules: whether the pipeline has modules after pooling, which are slow.

    """
    pooled = [encoding.pooled for encoding in encodings if encoding.pooled is not None]
    rows = [row for vectors_of_text in pooled for row in np.atleast_2d(vectors_of_text)]
    if not rows:
        return list(encodings)
    wanted = rows, options.pooling, options.dimensions, options.normalize
    if len(rows) <= INLINE_VECTORS and not modules:
        kept = iter(vectors.finish(*wanted))
    else:
        kept = iter(await asyncio.to_thread(vectors.finish, *wanted))
    if not options.layers:
        return [dataclasses.replace(encoding, pooled=next(kept)) for encoding in encodings]
    return [
        dataclasses.replace(encoding, pooled=np.stack([next(kept) for _ in options.layers]))
        for encoding in encodings
    ]
