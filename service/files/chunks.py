"""Plan for a vector of each chunk of a text, for an engine of this process.

Notation: S tokens of one text, H hidden size, n chunks of a text, D features of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from service.engines.contract import Floats, TextTask
from service.errors import InputTooLong, Unprocessable
from service.files.encoder import Refused, batches_by_length
from service.files.fields import TextArrays
from service.files.text_arrays import PooledPlan, Run
from service.inference.chunks import chunks_of
from service.inference.long_texts import Window, store, windows_of
from service.inference.text_spans import TextSpans, span_vectors
from service.inference.tokenization.tokenized import TokenizedText
from service.inference.tokenization.tokenizer import Options, TextTokenizer

STATE_BYTES = 2**29
"""Maximum bytes of the token vectors of a text, which are in memory together."""


@dataclass(slots=True, eq=False, kw_only=True)
class ChunkedText(TokenizedText):
    """Text that is cut into chunks."""

    chunks: TextSpans
    windows: Sequence[Window] = ()
    """Windows of the whole text, unless its chunks are encoded alone."""
    parts: Sequence[TokenizedText] = ()
    """Chunks as texts of their own, if they are encoded alone."""


@dataclass(frozen=True, kw_only=True)
class ChunksPlan(PooledPlan):
    """Plan for the offsets of a text's chunks, and a vector of each."""

    tokenizer: TextTokenizer
    options: Options
    """Options of tokenisation of a chunk."""

    @classmethod
    def of(
        cls, plan: PooledPlan, tokenizer: TextTokenizer, options: Options, batch_tokens: int
    ) -> ChunksPlan:
        """Return the plan for chunks with the options of a plan for whole texts."""
        own = {part.name: getattr(plan, part.name) for part in fields(plan)}
        own["batch_tokens"] = batch_tokens
        return cls(**own, tokenizer=tokenizer, options=options)

    def prepare(self, given: str, text: TokenizedText) -> TokenizedText | Refused:
        """Cut a text into chunks, and tokenise chunks that are encoded alone."""
        size = 4 * len(text.input_ids) * self.manifest.config.hidden_size
        if self.encoding.late and size > STATE_BYTES:
            return Refused(
                f"the text has {len(text.input_ids)} tokens, whose vectors take {size} bytes; the "
                f"limit is {STATE_BYTES}: split it, or pass --no-late"
            )
        windows: Sequence[Window] = ()
        parts: Sequence[TokenizedText] = ()
        try:
            (chunks,) = chunks_of([given], [text], self.encoding.chunk)
            if self.encoding.late:
                windows = windows_of(text, self.tokenizer.limits.max_tokens, "the text")
            else:
                alone = [given[start:end] for start, end in chunks.places.tolist()]
                parts = self.tokenizer.tokenize(alone, self.options)
        except (InputTooLong, Unprocessable) as error:
            return Refused.of(error)
        own = {part.name: getattr(text, part.name) for part in fields(TokenizedText)}
        return ChunkedText(**own, chunks=chunks, windows=windows, parts=parts)

    def compute(self, texts: Sequence[TokenizedText], run: Run) -> list[TextArrays]:
        """Compute `[n]` starts and ends in code points, and `[n, D]` vectors for each text."""
        chunked = [text for text in texts if isinstance(text, ChunkedText)]
        rows = self._late(chunked, run) if self.encoding.late else self._alone(chunked, run)
        features = self.vectors.kept(self.encoding.pooling, self.encoding.dimensions)
        vectors = self.typed([*rows, np.zeros(features, np.float32)])[:-1]
        counts = [len(text.chunks.ranges) for text in chunked]
        parts = np.split(vectors, np.cumsum(counts)[:-1])
        return [
            (*text.chunks.places.T.astype(np.int64), part)
            for text, part in zip(chunked, parts, strict=True)
        ]

    def _late(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the vectors of all chunks, pooled over the token vectors of whole texts."""
        wanted = self.encoding
        mode = wanted.pooling or self.manifest.sentence.pooling
        pooled = [
            vector
            for text, state in zip(texts, self._states(texts, run), strict=True)
            for vector in span_vectors(state, text.chunks.ranges, mode)
        ]
        return self.vectors.finish(pooled, wanted.pooling, wanted.dimensions, wanted.normalize)

    def _states(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the token vectors `[S, H]` of each text, computed in windows if it is long."""
        size = self.manifest.config.hidden_size
        states = [np.empty((len(text.input_ids), size), np.float32) for text in texts]
        work: list[tuple[int, Window]] = [
            (index, window) for index, text in enumerate(texts) for window in text.windows
        ]
        lengths = [len(window.tokens) for _, window in work]
        for batch in batches_by_length(lengths, self.batch_tokens):
            some = [work[place] for place in batch]
            outputs = run([self._task(texts[index], window) for index, window in some])
            for (index, window), output in zip(some, outputs, strict=True):
                store(window, output.hidden[0], states[index])
        return states

    def _task(self, text: TokenizedText, window: Window) -> TextTask:
        ids, segments = text.input_ids[window.tokens], text.segment_ids[window.tokens]
        return TextTask(ids, segments, (self.layer,))

    def _alone(self, texts: Sequence[ChunkedText], run: Run) -> list[Floats]:
        """Return the vectors of all chunks, each encoded as a text of its own."""
        parts = [part for text in texts for part in text.parts]
        vectors: dict[int, Floats] = {}
        lengths = [len(part.input_ids) for part in parts]
        for batch in batches_by_length(lengths, self.batch_tokens) if parts else []:
            found = self.pooled([parts[place] for place in batch], run)
            vectors |= zip(batch, found, strict=True)
        return [vectors[place] for place in range(len(parts))]
