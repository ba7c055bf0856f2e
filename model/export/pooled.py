"""Pooled vectors of texts by the PyTorch encoder."""

from __future__ import annotations

import itertools

import torch
from tokenizers import Tokenizer
from torch import Tensor

from model.artifact.sentence import SentenceConfig
from model.encoder.encoder import Encoder
from model.export.calibration import calibration_lines
from model.numerics.batch import Batch
from model.numerics.pooling import PoolingModes, Vector, pool
from model.packing import PackedBatch


def pooled_vectors(encoder: Encoder, batch: Batch, pooling: PoolingModes) -> list[Vector]:
    """Return the pooled last hidden state of each text, `[H]`, or `[n · H]` for n modes."""
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    bounds = itertools.pairwise(batch.cu_seqlens)
    return [pool(hidden[start:end], pooling) for start, end in bounds]


def calibration_vectors(encoder: Encoder, tokenizer: Tokenizer, sentence: SentenceConfig) -> Tensor:
    """Return the pooled vectors of the lines of `calibration.txt`, without a prompt.

    Returns:
        `[n, H]`, or `[n, m · H]` for m modes; n is 0 if the tokenizer has a token for no line.

    """
    batches = calibration_lines(tokenizer, sentence.max_length, encoder.config.adapters)
    vectors = [
        torch.from_numpy(vector)
        for batch in batches
        for vector in pooled_vectors(encoder, batch, sentence.pooling)
    ]
    return torch.stack(vectors) if vectors else torch.empty(0, encoder.config.hidden_size)
