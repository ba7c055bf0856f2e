"""Comparison of expanded queries: PyTorch against the graphs.

Expansion tokens attend to the query's tokens, and may be masked as keys.

Notation: S tokens of one text, D features of a token's vector.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import torch

from model.encoder.encoder import Encoder
from model.numerics.batch import pack
from model.numerics.comparison import Comparison, Kind, Tolerance, task_key
from model.numerics.task_head import text_scores
from model.packing import PackedBatch
from model.runtimes.capabilities import TaskHead, capability
from model.runtimes.contract import Runtime
from model.tasks.head import TaskModule, scores_of_text

LENGTHS = (3, 11, 1, 20)
"""Numbers of tokens of queries before expansion; at most the expanded length."""


def compare_filled_up(
    encoder: Encoder,
    head: TaskModule,
    runtime: Runtime,
    comparison: Comparison,
    tolerances: Mapping[Kind, Tolerance],
) -> None:
    """Add the token vectors of a batch of random expanded queries to a comparison.

    Args:
        encoder: encoder of the artifact.
        head: head of a late-interaction model; nothing is compared if it has no query expansion.
        runtime: runtime of the artifact.
        comparison: comparison to extend.
        tolerances: tolerances of the artifact's precision.

    """
    late = head.config.late
    if late is None or late.expansion is None:
        return
    generator = np.random.default_rng(2)
    lengths = [min(length, late.expansion.length) for length in LENGTHS]
    queries = [generator.integers(0, encoder.config.vocab_size, length) for length in lengths]
    filled = [late.filled_up(ids) for ids in queries]
    unseen = [late.unseen_of(length) for length in lengths]
    batch = pack([(ids, np.zeros_like(ids)) for ids in filled], unseen)
    last = encoder.config.num_hidden_layers
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(batch)).hidden_states[last]
    states, _ = runtime.encode(batch, [(text, last) for text in range(len(filled))], [])
    token_vectors = text_scores(head.config, states, capability(runtime, TaskHead).score)
    key = task_key(head.config)
    for (start, end), vectors in zip(
        itertools.pairwise(batch.cu_seqlens), token_vectors, strict=True
    ):
        expected = scores_of_text(head, hidden[start:end])
        comparison.add({key: expected}, {key: vectors}, tolerances)
