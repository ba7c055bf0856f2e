"""The peer computes the same from the same inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from benchmarks.peers.sentence_transformers import padded


def test_the_peer_gets_what_its_tokenizer_would_give(checkpoint: Path):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    pairs = [("the cat", "a"), ("a", "the"), ("x y z", "the cat")]
    expected = tokenizer(pairs, padding=True, return_tensors="np")
    plain = [tokenizer(*pair) for pair in pairs]
    found = padded([(np.array(one["input_ids"]), np.array(one["token_type_ids"])) for one in plain])
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
