"""Comparison of PyTorch's vectors and an artifact's vectors by the similarity of texts."""

from __future__ import annotations

import numpy as np

from model.artifact.manifest import Artifact
from model.artifact.vectors import TextVectors
from model.encoder.encoder import Encoder
from model.export.pooled import pooled_vectors
from model.export.samples import samples_of
from model.numerics.pooling import TextPooling
from model.numerics.similarity import Similarity, similarity
from model.runtimes.contract import Floats, Runtime


def measure_similarity(artifact: Artifact, encoder: Encoder, runtime: Runtime) -> Similarity:
    """Compare the vectors of the samples for similarity, without a prompt, all tokens pooled.

    Args:
        artifact: artifact with pooling, modules, and tokenizer or processing of pictures.
        encoder: its float32 encoder in PyTorch.
        runtime: runtime of its graphs.

    """
    vectors = TextVectors.of(artifact)
    last = artifact.manifest.config.num_hidden_layers
    exact: list[Floats] = []
    approximate: list[Floats] = []
    for batch in samples_of(artifact).similarity():
        texts = range(len(batch.padded_index))
        exact += vectors.units(pooled_vectors(encoder, batch, vectors))
        poolings = [TextPooling(text, last, vectors.pooling) for text in texts]
        approximate += vectors.units(runtime.encode(batch, [], poolings)[1])
    return similarity(np.stack(exact), np.stack(approximate))
