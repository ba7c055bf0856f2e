"""Comparison of PyTorch's vectors and an artifact's vectors by the similarity of texts."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from model.encoder.encoder import Encoder
from model.export.calibration import similarity_batches
from model.export.pooled import pooled_vectors
from model.numerics.pooling import TextPooling
from model.numerics.similarity import Similarity, similarity
from model.runtimes.contract import Floats, Runtime


def measure_similarity(artifact: Artifact, encoder: Encoder, runtime: Runtime) -> Similarity:
    """Compare the vectors of the texts in `similarity.txt`, without a prompt, all tokens pooled.

    Args:
        artifact: artifact with tokenizer, pooling and modules.
        encoder: its float32 encoder in PyTorch.
        runtime: runtime of its graphs.

    """
    manifest, vectors = artifact.manifest, TextVectors.of(artifact)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    last = manifest.config.num_hidden_layers
    exact: list[Floats] = []
    approximate: list[Floats] = []
    for batch in similarity_batches(
        tokenizer, manifest.sentence.max_length, encoder.config.adapters
    ):
        texts = range(len(batch.padded_index))
        exact += vectors.units(pooled_vectors(encoder, batch, vectors.pooling))
        poolings = [TextPooling(text, last, vectors.pooling) for text in texts]
        approximate += vectors.units(runtime.encode(batch, [], poolings)[1])
    return similarity(np.stack(exact), np.stack(approximate))
