"""Pooled vectors of texts by the PyTorch encoder."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.encoder.encoder import Encoder
from model.export.samples import Samples
from model.numerics.batch import Batch
from model.numerics.pooling import Vector
from model.packing import PackedBatch


def pooled_vectors(encoder: Encoder, batch: Batch, vectors: TextVectors) -> list[Vector]:
    """Return the pooled last hidden state of each text, `[H]`, or `[n · H]` for n modes."""
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    bounds = itertools.pairwise(batch.cu_seqlens)
    return [vectors.pool(hidden[start:end], vectors.pooling) for start, end in bounds]


def calibration_vectors(
    encoder: Encoder, samples: Samples, sentence: SentenceConfig, tensors: Mapping[str, Tensor]
) -> Tensor:
    """Return the pooled vectors of the samples for calibration, without a prompt.

    Args:
        encoder: the encoder.
        samples: inputs of the encoder.
        sentence: its pooling.
        tensors: parameters of its modules, and of a pooling by attention.

    Returns:
        `[n, H]`, or `[n, m · H]` for m modes; n is 0 if the tokenizer has a token for no line.

    """
    own = {name: tensor.numpy() for name, tensor in tensors.items()}
    pipeline = TextVectors.with_tensors(sentence, encoder.config, own)
    vectors = [
        torch.from_numpy(vector)
        for batch in samples.calibration(long=False)
        for vector in pooled_vectors(encoder, batch, pipeline)
    ]
    return torch.stack(vectors) if vectors else torch.empty(0, encoder.config.hidden_size)
