"""The similarity of two texts with one head switched off in both: what each head is worth to it.

Each head alone, as Michel et al. 2019 (arXiv 1905.10650) switch them off: its output is multiplied
by zero before the output projection. Each is a text of its own to the engine, once a side.

Notation: L layers, N heads, D features of a text's vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.explanation.occlusion import Finish, Job, cosine
from service.inference.tokenization.tokenizer import TokenizedText

Head = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class HeadOcclusion:
    """Two texts, in which each head is switched off once, layer by layer."""

    texts: tuple[TokenizedText, TokenizedText]
    poolings: tuple[Pooling, Pooling]
    finish: Finish
    similarities: Floats
    """`[L, N]`: the cosine without each head; NaN until it is computed."""
    _waiting: dict[Head, Floats] = field(default_factory=dict, init=False)
    """`[D]`: the vector of one text without a head, until the other text's is computed."""

    def jobs(self) -> Iterator[Job]:
        """Yield a forward pass for each head and text, and the function that takes its output."""
        for layer, head in np.ndindex(*self.similarities.shape):
            for text, pooling in zip(self.texts, self.poolings, strict=True):
                ids, segments = text.input_ids, text.segment_ids
                task = TextTask(ids, segments, pooling=pooling, ablated=((layer, head),))
                yield task, _Placement(self, (layer, head))

    def take(self, head: Head, vector: Floats) -> None:
        """Take the vector of one of the texts without a head; called in any thread."""
        other = self._waiting.setdefault(head, vector)
        if other is not vector:
            del self._waiting[head]
            self.similarities[head] = cosine(other, vector)


@dataclass(frozen=True, slots=True)
class _Placement:
    """The function that takes the vector of a text's output."""

    occlusion: HeadOcclusion
    head: Head

    def __call__(self, output: Output) -> None:
        """Keep the vector; called in the thread that computed the output."""
        assert output.pooled is not None  # noqa: S101 - the scheduler has checked every output
        self.occlusion.take(self.head, self.occlusion.finish(output.pooled))


def head_occlusion_bytes(width: int, config: EncoderConfig) -> int:
    """Return the bytes of the vectors of both texts of a pair, of `width` features each."""
    return 2 * 4 * width * config.num_hidden_layers * config.num_attention_heads
