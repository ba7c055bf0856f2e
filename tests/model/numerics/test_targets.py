"""Tensors of a target by key, and random labels for comparisons."""

from __future__ import annotations

import numpy as np

from model.config.decoder import DecoderConfig
from model.config.encoder import EncoderConfig
from model.numerics.comparison import Key
from model.numerics.targets import TargetTensors, random_labels

LAYERS = EncoderConfig(
    model_type="bart",
    vocab_size=9,
    hidden_size=4,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
    hidden_act="gelu",
    max_position_embeddings=6,
    type_vocab_size=0,
    layer_norm_eps=1e-5,
    pad_token_id=0,
)


def test_every_tensor_has_a_key_of_its_own() -> None:
    rng = np.random.default_rng(0)
    shapes = ((3, 5, 4), (2, 5, 4), (2, 2, 5, 5), (2, 2, 5, 7), (5,))
    tensors = TargetTensors(*(rng.random(shape, np.float32) for shape in shapes))
    found = tensors.keyed()
    assert len(found) == 3 + 2 + 4 + 4 + 1
    assert list(map(str, list(found)[:7])) == [
        *("decoder_hidden 0", "decoder_hidden 1", "decoder_hidden 2"),
        *("cross_queries 0", "cross_queries 1", "decoder_attention 0.0", "decoder_attention 0.1"),
    ]
    assert found[Key("cross_attention", 1, 0)] is not None
    np.testing.assert_array_equal(found[Key("cross_attention", 1, 0)], tensors.cross_maps[1, 0])
    np.testing.assert_array_equal(found[Key("logprobs")], tensors.logprobs)


def test_labels_are_what_the_decoder_knows() -> None:
    decoder = DecoderConfig(layers=LAYERS, start_token_id=0)
    labels = random_labels(decoder, 5, seed=1)
    assert labels.shape == (5,)
    assert (random_labels(decoder, 99, 1) < 9).all()
    assert len(random_labels(decoder, 99, 1)) == 6
    assert not np.array_equal(labels, random_labels(decoder, 5, seed=2))
