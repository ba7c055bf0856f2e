"""Token vectors and pooled vectors from a text's hidden states."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.numerics.pooling import Pool, modes_of, pool
from service.engines.contract import Floats, Ids, Output, Pooling, TextTask
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding
from service.inference.text_spans import TextSpans, span_vectors
from service.scheduler.outputs import requested


@dataclass(frozen=True)
class Reduction:
    """Function from a text's output to the requested arrays, called in the computing thread."""

    options: EncodeOptions
    pooling: Pooling
    """Pooling of every layer; its own layer is ignored."""
    vectors: TextVectors | None = None
    """Pipeline that cuts and normalises pooled vectors; None leaves them raw."""
    spans: TextSpans | None = None
    """Spans of the text; None without spans."""
    input_ids: Ids | None = None
    """Token ids that the encoder reads; needed for vectors of the task head alone."""
    pool: Pool = pool
    """Pooling of states; the artifact's own."""

    def __call__(self, output: Output) -> TextEncoding:
        """Return the requested states and pooled vectors."""
        asked = self.options, self.pooling, self.spans
        encoding = encoding_of(output.hidden, *asked, pooled=output.pooled, own_pool=self.pool)
        if (head := self.options.head) and self.input_ids is not None:
            scores = requested(output.scores)
            encoding = dataclasses.replace(
                encoding,
                sparse=head.sparse(scores, self.input_ids),
                multivector=head.multivector(scores, self.input_ids),
            )
        return completed([encoding], self.options, self.vectors)[0] if self.vectors else encoding


def encoding_of(
    states: Sequence[Floats],
    options: EncodeOptions,
    pooling: Pooling,
    spans: TextSpans | None,
    *,
    pooled: Floats | None = None,
    own_pool: Pool = pool,
) -> TextEncoding:
    """Return a text's arrays, with raw pooled vectors, from its hidden states.

    Args:
        states: requested hidden states `[S, H]`; none if only the engine's pooled vector is needed.
        options: requested arrays; with `layers`, each gets an axis of layers.
        pooling: pooling of the text.
        spans: spans of the text; None without spans.
        pooled: the engine's pooled vector; None if the states are pooled here.
        own_pool: pooling of states; the artifact's own.

    """
    tokens = None
    mode, first = pooling.mode, pooling.first_token
    if options.tokens:
        tokens = joined(states, options)
    if options.pooled and pooled is None:
        pooled = joined([own_pool(state, mode, first, ()) for state in states], options)
    if spans is None:
        return TextEncoding(tokens, pooled)
    shape = len(spans.ranges), states[0].shape[1] * len(modes_of(mode))
    rows = [
        np.array(span_vectors(state, spans.ranges, mode), np.float32).reshape(shape)
        for state in states
    ]
    return TextEncoding(tokens, pooled, spans=joined(rows, options), places=spans.places)


def joined(arrays: Sequence[Floats], options: EncodeOptions) -> Floats:
    """Return the array of each requested hidden state, stacked if `layers` is not empty."""
    return np.stack(arrays) if options.layers else arrays[0]


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
    states = options.states if options.tokens or several or options.spans else ()
    return [
        dataclasses.replace(
            options.head.encoded(text)
            if options.head
            else TextTask(text.input_ids, text.segment_ids, pixels=text.pixels),
            hidden_layers=states,
            pooling=pooling if options.pooled and not several else None,
            ablated=options.ablated,
        )
        for text, pooling in zip(prepared.texts, poolings, strict=True)
    ]


async def finished(
    encodings: Sequence[TextEncoding], options: EncodeOptions, vectors: TextVectors
) -> list[TextEncoding]:
    """Return the texts' arrays with raw pooled vectors completed in a thread; see `completed`."""
    if not (options.pooled or options.spans):
        return list(encodings)
    return await asyncio.to_thread(completed, encodings, options, vectors)


def completed(
    encodings: Sequence[TextEncoding], options: EncodeOptions, vectors: TextVectors
) -> list[TextEncoding]:
    """Return the texts' arrays with raw pooled vectors projected, cut and normalised.

    Args:
        encodings: arrays with raw pooled vectors, of texts and of spans.
        options: options of the arrays.
        vectors: vector pipeline of the artifact.

    """
    pooled = [array for own in encodings for array in (own.pooled, own.spans) if array is not None]
    rows = [row for array in pooled for row in array.reshape(-1, array.shape[-1])]
    kept = iter(vectors.finish(rows, options.pooling, options.dimensions, options.normalize))
    size = vectors.kept(options.pooling, options.dimensions)

    def complete(raw: Floats | None) -> Floats | None:
        if raw is None:
            return None
        if raw.ndim == 1:
            return next(kept)
        complete = [next(kept) for _ in range(math.prod(raw.shape[:-1]))]
        return np.array(complete, np.float32).reshape(*raw.shape[:-1], size)

    return [
        dataclasses.replace(own, pooled=complete(own.pooled), spans=complete(own.spans))
        for own in encodings
    ]
