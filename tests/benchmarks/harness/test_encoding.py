"""The timed encoding returns the model's own vectors and maps, and batches each text once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from benchmarks.harness.bench import Bench
from benchmarks.harness.encoding import batches
from model.numerics.batch import pack


def test_every_text_is_in_one_batch_within_the_budget():
    generator = np.random.default_rng(0)
    texts = [(np.full(n, i), np.zeros(n)) for i, n in enumerate(generator.integers(1, 90, 200))]
    found = list(batches(texts, 64))
    assert Counter(int(ids[0]) for batch in found for ids, _ in batch) == Counter(range(200))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(len(ids) for ids, _ in batch) <= 64
    lengths = [len(ids) for batch in found for ids, _ in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert any(len(batch) > 5 for batch in found)


@pytest.mark.slow
def test_what_is_timed_is_the_models_own(bench: Bench, checkpoint: Path):
    encoding = bench.encoding(bench.model, "fp32")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    module = BertModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    texts = ["the cat", "a b c d e", "z"]
    segments = encoding.tokenize(texts)
    vectors = encoding.pooled(pack(segments))
    for text, one, vector in zip(texts, segments, vectors, strict=True):
        with torch.inference_mode():
            expected = module(**tokenizer(text, return_tensors="pt"), output_attentions=True)
        mean = expected.last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
        for layer, maps in zip((1, 0), encoding.maps(one, (1, 0), (2, 0)), strict=True):
            weights = expected.attentions[layer][0, [2, 0]].numpy()
            np.testing.assert_allclose(maps, weights, atol=1e-5)
