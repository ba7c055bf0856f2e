"""Similarity of two texts with one head ablated in both: the contribution of each head.

Heads are ablated one at a time, as in Michel et al. 2019 (arXiv 1905.10650): the head's output is
multiplied by zero before the output projection. To the engine, each ablation of a text is a text.

Notation: L layers, N heads, D features of a text's vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.explanation.occlusion import Finish, Job, cosine
from service.inference.tokenization.tokenized import TokenizedText
from service.scheduler.outputs import requested

Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class HeadOcclusion:
    """Two texts, in which each head is ablated once, layer by layer."""

    texts: tuple[TokenizedText, TokenizedText]
    poolings: tuple[Pooling, Pooling]
    finish: Finish
    similarities: Floats
    """`[L, N]`: cosine without each head; NaN until it is computed."""
    _waiting: dict[Head, Floats] = field(default_factory=dict, init=False)
    """Vectors `[D]` of one text by ablated head, until the other text's vector is computed."""

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each head and text, and the callable that stores its output."""
        for layer, head in np.ndindex(*self.similarities.shape):
            for text, pooling in zip(self.texts, self.poolings, strict=True):
                ids, segments = text.input_ids, text.segment_ids
                ablated = ((layer, head),)
                task = TextTask(ids, segments, pooling=pooling, ablated=ablated, pixels=text.pixels)
                yield task, _Placement(self, (layer, head))

    def take(self, head: Head, vector: Floats) -> None:
        """Store the vector of one of the texts without a head; can be called in any thread."""
        other = self._waiting.setdefault(head, vector)
        if other is not vector:
            del self._waiting[head]
            self.similarities[head] = cosine(other, vector)


@dataclass(frozen=True, slots=True)
class _Placement:
    """Callable that stores the vector of a text's output."""

    occlusion: HeadOcclusion
    head: Head

    def __call__(self, output: Output) -> None:
        """Store the vector; called in the thread that computed the output."""
        self.occlusion.take(self.head, self.occlusion.finish(requested(output.pooled)))


def head_occlusion_bytes(width: int, config: EncoderConfig) -> int:
    """Return the bytes of the vectors, of `width` features, of both texts without each head."""
    return 2 * 4 * width * config.num_hidden_layers * config.num_attention_heads
