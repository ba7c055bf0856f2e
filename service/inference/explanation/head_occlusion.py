"""The similarity of two texts with one head switched off in both: what each head is worth to it.

Each head alone, as Michel et al. 2019 (arXiv 1905.10650) switch them off: its output is multiplied
by zero before the output projection. Each is a text of its own to the engine, once a side.

Notation: L layers, N heads, D features of a text's vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Floats, Output, Pooling, TextTask
from service.inference.explanation.occlusion import Finish, Job, cosine
from service.inference.tokenization.tokenizer import TokenizedText


@dataclass(frozen=True)
class HeadOcclusion:
    """Two texts, in which each head is switched off once."""

    texts: tuple[TokenizedText, TokenizedText]
    poolings: tuple[Pooling, Pooling]
    finish: Finish
    vectors: Floats
    """`[2, L, N, D]`, where the vectors of both texts without each head come."""

    def jobs(self) -> Iterator[Job]:
        """A forward pass for each head and text, and what becomes of its output."""
        for layer, head in np.ndindex(*self.vectors.shape[1:3]):
            for side, (text, pooling) in enumerate(zip(self.texts, self.poolings, strict=True)):
                ids, segments = text.input_ids, text.segment_ids
                task = TextTask(ids, segments, pooling=pooling, ablated=((layer, head),))
                yield task, _Placement(self, (side, layer, head))

    def similarities(self) -> Floats:
        """`[L, N]`: the cosine without each head, once all jobs are done."""
        found = np.empty(self.vectors.shape[1:3], np.float32)
        for place in np.ndindex(*found.shape):
            found[place] = cosine(self.vectors[0][place], self.vectors[1][place])
        return found


@dataclass(frozen=True, slots=True)
class _Placement:
    """The function that keeps the vector of a text's output."""

    occlusion: HeadOcclusion
    place: tuple[int, int, int]

    def __call__(self, output: Output) -> None:
        """In the thread that computed it."""
        assert output.pooled is not None  # noqa: S101 - the scheduler has checked every output
        self.occlusion.vectors[self.place] = self.occlusion.finish(output.pooled)


def head_occlusion_tokens(tokens: int, config: EncoderConfig) -> int:
    """Tokens that are encoded to switch off each head of a text of so many tokens."""
    return tokens * config.num_hidden_layers * config.num_attention_heads


def head_occlusion_bytes(width: int, config: EncoderConfig) -> int:
    """Bytes of the vectors of a pair, of so many features each."""
    return 2 * 4 * width * config.num_hidden_layers * config.num_attention_heads
