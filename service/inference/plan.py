"""Plan of a request's arrays: what its fields beside the texts decide, checked once.

Notation: S tokens of one text, H hidden size, D features of a vector.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from model.artifact.manifest import Manifest
from model.artifact.vectors import TextVectors
from model.numerics.pooling import modes_of
from model.numerics.quantization import FLOAT32
from service.engines.contract import Floats, Ids, Output, Pooling, TextTask
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.text_spans import TextSpans, span_vectors
from service.inference.tokenization.text import Text
from service.scheduler.outputs import requested

Reduce = Callable[[Output], TextEncoding]
"""Function from a text's output to its arrays, called in the computing thread."""


class Plan:
    """Task of each text of a request for the engine, and the way from its output to arrays.

    A plan has no state of a request: requests with the same options share it.
    """

    def __init__(self, options: EncodeOptions, manifest: Manifest, vectors: TextVectors) -> None:
        """Decide for options that were checked.

        Args:
            options: the requested arrays.
            manifest: manifest of the model.
            vectors: the model's vector pipeline.

        """
        self.options = options
        self._sentence, self._vectors = manifest.sentence, vectors
        self._mode, self._layer = options.pooling or self._sentence.pooling, options.states[-1]
        several = bool(options.layers)
        whole = options.tokens or several or options.spans
        self._states = options.states if whole else ()
        self._engine_pools = options.pooled and not several
        self._whole_text = Pooling(self._layer, self._mode)
        self._finish = vectors.finisher(options.pooling, options.dimensions, options.normalize)
        self.projects = bool(self._sentence.modules)
        """Whether vectors are finished for all texts at once, as matrix products are faster so."""
        converted = options.quantization is not FLOAT32
        self.plain = self._engine_pools and not (
            whole or options.head or self.projects or converted
        )
        """Whether a text has nothing but its vector in float32, pooled by the engine."""
        self.features = vectors.kept(options.pooling, options.dimensions)
        """D of pooled vectors."""

    def pooling(self, text: Text) -> Pooling:
        """Return the pooling of a text, at the last requested hidden state."""
        first = text.prompt_tokens and text.first_pooled(self._sentence)
        return replace(self._whole_text, first_token=first) if first else self._whole_text

    def floats(self, texts: Sequence[Text]) -> int:
        """Return the number of floats of the arrays of texts, without vectors of the task head."""
        if self.plain:
            return len(texts) * self.features
        options = self.options
        pooled = options.pooled * len(texts) + sum(len(own.ranges) for own in options.spans)
        of_state = pooled * self.features
        if options.tokens:
            tokens = sum([text.size for text in texts])
            of_state += tokens * self._vectors.hidden_size
        return len(options.states) * of_state

    def task(self, text: Text) -> TextTask:
        """Return the forward pass of a text; states of several layers are pooled afterwards."""
        pooling = None
        if self._engine_pools:
            pooling = self.pooling(text) if text.prompt_tokens else self._whole_text
        if head := self.options.head:
            task = head.encoded(text)
            states, ablated = self._states, self.options.ablated
            return replace(task, hidden_layers=states, pooling=pooling, ablated=ablated)
        return TextTask(
            text.input_ids,
            text.segment_ids,
            self._states,
            pooling,
            self.options.ablated,
            pixels=text.pixels,
        )

    def reductions(self, texts: Sequence[Text], tasks: Sequence[TextTask]) -> Sequence[Reduce]:
        """Return the reduction of each text's output; the same one where texts do not differ."""
        options = self.options
        if self.plain or not (options.spans or options.head or options.layers):
            return [self.arrays] * len(texts)
        spans: Sequence[TextSpans | None] = options.spans or [None] * len(texts)
        return [
            partial(
                self.arrays,
                pooling=self.pooling(text),
                spans=own,
                input_ids=task.input_ids if options.head else None,
            )
            for text, task, own in zip(texts, tasks, spans, strict=True)
        ]

    def arrays(
        self,
        output: Output,
        pooling: Pooling | None = None,
        spans: TextSpans | None = None,
        input_ids: Ids | None = None,
    ) -> TextEncoding:
        """Return a text's arrays; its pooled vectors are raw if the plan `projects`.

        Args:
            output: output of the engine.
            pooling: pooling of states that the engine has not pooled.
            spans: spans of the text.
            input_ids: token ids that the encoder read, for vectors of the task head.

        """
        if self.plain:
            return TextEncoding(None, self._finish(requested(output.pooled)))
        raw = self.raw(output.hidden, pooling, spans, output.pooled)
        if (head := self.options.head) and input_ids is not None:
            scores = requested(output.scores)
            raw.sparse = head.sparse(scores, input_ids)
            raw.multivector = head.multivector(scores, input_ids)
        if not self.projects:
            for name in ("pooled", "spans"):
                if (array := getattr(raw, name)) is not None:
                    setattr(raw, name, self._complete(array, iter(_rows(array))))
        return raw

    def raw(
        self,
        states: Sequence[Floats],
        pooling: Pooling | None,
        spans: TextSpans | None,
        pooled: Floats | None = None,
    ) -> TextEncoding:
        """Return a text's arrays with raw pooled vectors.

        Args:
            states: hidden states `[S, H]`; none if only the engine's pooled vector is needed.
            pooling: pooling of the states.
            spans: spans of the text.
            pooled: the engine's pooled vector; None if the states are pooled here.

        """
        options = self.options
        tokens = self._joined(states) if options.tokens else None
        if options.pooled and pooled is None:
            first = pooling.first_token if pooling else 0
            pooled = self._joined(
                [self._vectors.pool(state, self._mode, first, ()) for state in states]
            )
        if spans is None:
            return TextEncoding(tokens, pooled)
        shape = len(spans.ranges), states[0].shape[1] * len(modes_of(self._mode))
        rows = [
            np.array(span_vectors(state, spans.ranges, self._mode), np.float32).reshape(shape)
            for state in states
        ]
        return TextEncoding(tokens, pooled, spans=self._joined(rows), places=spans.places)

    async def finished(self, encodings: Sequence[TextEncoding]) -> Sequence[TextEncoding]:
        """Return arrays whose raw pooled vectors are projected, cut and normalised in a thread."""
        if not (self.options.pooled or self.options.spans):
            return encodings
        return await asyncio.to_thread(self._finished, encodings)

    def _finished(self, encodings: Sequence[TextEncoding]) -> Sequence[TextEncoding]:
        arrays = [array for own in encodings for array in (own.pooled, own.spans)]
        rows = [row for array in arrays if array is not None for row in _rows(array)]
        projected = iter(self._vectors.project(rows, self.options.pooling))
        for own in encodings:
            own.pooled = self._complete(own.pooled, projected)
            own.spans = self._complete(own.spans, projected)
        return encodings

    def _complete(self, array: Floats | None, rows: Iterator[Floats]) -> Floats | None:
        """Return the vectors of an array's rows `[…, H]`, cut and normalised, `[…, D]`."""
        if array is None:
            return None
        complete = [self._finish(next(rows)) for _ in range(math.prod(array.shape[:-1]))]
        features = len(complete[0]) if complete else self.features
        return np.array(complete, np.float32).reshape(*array.shape[:-1], features)

    def _joined(self, arrays: Sequence[Floats]) -> Floats:
        """Return the array of each requested hidden state, stacked if there may be several."""
        return np.stack(arrays) if self.options.layers else arrays[0]


def _rows(array: Floats) -> Floats:
    return array.reshape(-1, array.shape[-1])
