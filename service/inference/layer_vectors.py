"""Token vectors and pooled vectors from a text's hidden states."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.numerics.pooling import pool
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.encoding import EncodeOptions, PreparedTexts, TextEncoding


@dataclass(frozen=True)
class Reduction:
    """Function from a text's output to the requested arrays, called in the computing thread."""

    options: EncodeOptions
    pooling: Pooling
    """Pooling of every layer; its own layer is ignored."""
    vectors: TextVectors | None = None
    """Pipeline that cuts and normalises pooled vectors; None leaves them raw."""

    def __call__(self, output: Output) -> TextEncoding:
        """Return the requested states and pooled vectors."""
        options, pooled = self.options, None
        if not options.layers:
            tokens = output.hidden[0] if options.tokens else None
            if output.pooled is not None:
                pooled = self._finished([output.pooled])[0]
            return TextEncoding(tokens, pooled)
        if options.pooled:
            asked = self.pooling
            rows = [pool(state, asked.mode, asked.first_token) for state in output.hidden]
            pooled = np.stack(self._finished(rows))
        return TextEncoding(np.stack(output.hidden) if options.tokens else None, pooled)

    def _finished(self, rows: list[Floats]) -> list[Floats]:
        if not self.vectors:
            return rows
        options = self.options
        return self.vectors.finish(rows, options.pooling, options.dimensions, options.normalize)


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


async def finished(
    encodings: Sequence[TextEncoding], options: EncodeOptions, vectors: TextVectors
) -> list[TextEncoding]:
    """Return the texts' arrays with raw pooled vectors projected, cut and normalised in a thread.

    Args:
        encodings: arrays with raw pooled vectors.
        options: options of the arrays.
        vectors: vector pipeline of the artifact.

    """
    pooled = [encoding.pooled for encoding in encodings if encoding.pooled is not None]
    rows = [row for vectors_of_text in pooled for row in np.atleast_2d(vectors_of_text)]
    if not rows:
        return list(encodings)
    wanted = rows, options.pooling, options.dimensions, options.normalize
    kept = iter(await asyncio.to_thread(vectors.finish, *wanted))
    if not options.layers:
        return [dataclasses.replace(encoding, pooled=next(kept)) for encoding in encodings]
    return [
        dataclasses.replace(encoding, pooled=np.stack([next(kept) for _ in options.layers]))
        for encoding in encodings
    ]
