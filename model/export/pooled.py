"""Pooled vectors of texts by the PyTorch encoder."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from model.encoder.encoder import Encoder
from model.export.samples import Samples
from model.numerics.batch import Batch
from model.numerics.pooling import PoolingModes, Vector, pool
from model.packing import PackedBatch


def pooled_vectors(encoder: Encoder, batch: Batch, pooling: PoolingModes) -> list[Vector]:
    """Return the pooled last hidden state of each text, `[H]`, or `[n · H]` for n modes."""
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    bounds = itertools.pairwise(batch.cu_seqlens)
    return [pool(hidden[start:end], pooling) for start, end in bounds]


def calibration_vectors(encoder: Encoder, samples: Samples, pooling: PoolingModes) -> Tensor:
    """Return the pooled vectors of the samples for calibration, without a prompt.

    Returns:
        `[n, H]`, or `[n, m · H]` for m modes; n is 0 if the tokenizer has a token for no line.

    """
    vectors = [
        torch.from_numpy(vector)
        for batch in samples.calibration(long=False)
        for vector in pooled_vectors(encoder, batch, pooling)
    ]
    return torch.stack(vectors) if vectors else torch.empty(0, encoder.config.hidden_size)
