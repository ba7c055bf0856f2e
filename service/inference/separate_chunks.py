"""Chunks of texts that are encoded alone, each as an input of its own.

Notation: n chunks of a text, D features of a vector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model.numerics.quantization import FLOAT32
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import PreparedTexts
from service.inference.outputs.chunks import ChunkOptions, chunks_of
from service.inference.outputs.field import TextArrays
from service.inference.outputs.spans import MOST_SPANS
from service.inference.plan import Plan
from service.inference.tokenization.text import Text, TextSpans
from service.inference.tokenization.tokenizer import Options
from service.scheduler.call import Call
from service.scheduler.outputs import requested


@dataclass(frozen=True)
class SeparateChunks:
    """Chunks of a request's texts, tokenised as inputs of their own."""

    texts: list[Text]
    """Whole texts, which were cut by their tokens, and whose spans are the chunks."""
    prepared: PreparedTexts
    """Chunks of all texts, text by text."""

    @classmethod
    async def prepare(
        cls,
        inference: Inference,
        inputs: Sequence[str],
        options: Options,
        chunk: ChunkOptions,
        caller: Call,
        engine: str | None,
    ) -> SeparateChunks:
        """Cut texts into chunks, and tokenise the chunks.

        Raises:
            Unprocessable: too many inputs, characters or chunks, no chunk at all, or a chunk is
                too long for the model.
            Overloaded: there is not enough memory or time.

        """
        began, tokenizer = time.monotonic(), inference.request_tokenizer
        texts = await tokenizer.tokenize(inputs, replace(options, windows=True), caller)
        most = min(MOST_SPANS, tokenizer.limits.max_inputs)
        chunks = await asyncio.to_thread(chunks_of, inputs, texts, chunk, most)
        _check(texts, chunks, tokenizer.tokenizer.limit(options))
        for text, own in zip(texts, chunks, strict=True):
            text.spans = own
        parts = [
            given[start:end]
            for given, own in zip(inputs, chunks, strict=True)
            for start, end in own.places.tolist()
        ]
        named = replace(options, naming="chunk {} of all inputs")
        prepared = await inference.prepare(parts, named, caller, "encode", engine)
        prepared.timings.began = began
        prepared.timings.tokenization_seconds = time.monotonic() - began
        return cls(texts, prepared)

    async def encode(self, inference: Inference, plan: Plan) -> Sequence[TextArrays]:
        """Return the vectors of each text's chunks, `[n, D]` or `[layers, n, D]` with `layers`."""
        pooled = plan.having(outputs=("pooled",), quantization=FLOAT32)
        found = await inference.encode(self.prepared, pooled)
        vectors = np.stack([own["pooled"] for own in found], axis=-2)
        return await plan.converted(of_texts(self.texts, vectors))


def of_texts(texts: Sequence[Text], vectors: Floats) -> list[TextArrays]:
    """Return the spans of each text, and their vectors, of all vectors `[…, n, D]`."""
    spans = [requested(text.spans) for text in texts]
    ends = np.cumsum([len(own.ranges) for own in spans])[:-1]
    parts = np.split(vectors, ends, axis=-2)
    return [
        {"spans": own.places, "span_vectors": part} for own, part in zip(spans, parts, strict=True)
    ]


def _check(texts: Sequence[Text], chunks: Sequence[TextSpans], limit: int) -> None:
    """Raise unless there are chunks that all fit the model."""
    if not any(len(own.ranges) for own in chunks):
        raise Unprocessable("chunk: no input has a token: send texts")
    for index, (text, own) in enumerate(zip(texts, chunks, strict=True)):
        around = sum(text.special_tokens_mask)
        longest = max((own.ranges[:, 1] - own.ranges[:, 0]).tolist(), default=0)
        if longest + around > limit:
            raise Unprocessable(
                f"chunk: inputs[{index}] has a chunk of {longest} tokens, which with {around} "
                f"special and prompt tokens exceed the model's {limit}: set `size` to at most "
                f"{limit - around}, or `late` to true"
            )
