"""Forward passes and vectors of one encoder of an explanation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.numerics.vector_modules import Dense
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.towers import Tower
from tests.service.harness import CONFIG, tokenized

OPTIONS = ExplainOptions(1, None, pairs=False, occlusion=True, decomposition=False, heads=False)
RNG = np.random.default_rng(0)
SIZE = CONFIG.hidden_size
WEIGHT = RNG.standard_normal((3, SIZE)).astype(np.float32)


def tower(**changes: Any) -> Tower:
    dense = Dense(in_features=SIZE, out_features=3, bias=False, activation="Identity")
    sentence = SentenceConfig(pooling="cls", modules=(dense,), normalize=True, max_length=9)
    vectors = TextVectors(sentence, SIZE, {"0.linear.weight": WEIGHT})
    inference: Any = SimpleNamespace(config=CONFIG, sentence=sentence, vectors=vectors)
    prepared: Any = SimpleNamespace()
    return Tower(inference, replace(OPTIONS, **changes), prepared)


def test_a_forward_pass_has_the_pixels_and_only_the_states_that_are_needed() -> None:
    pixels = np.ones((4, 2), np.float32)
    picture = replace(tokenized(4), pixels=pixels)
    task = tower().task(picture)
    assert task.pixels is pixels
    assert (task.hidden_layers, task.pooling) == ((1,), tower().pooling_of(picture))
    assert tower(occlusion=False).task(tokenized(4)).hidden_layers == ()
    assert tower(pooling="mean").pooling_of(picture).mode == "mean"


def test_states_are_projected_as_pooled_vectors_are() -> None:
    states = RNG.standard_normal((5, SIZE)).astype(np.float32)
    np.testing.assert_allclose(tower().projected(states), states @ WEIGHT.T, atol=1e-6)
    vector = WEIGHT @ states[0]
    unit = vector / np.linalg.norm(vector)
    np.testing.assert_allclose(tower().finish(states[0]), unit, atol=1e-6)
    decomposed = tower().of_vector(states.sum(axis=0), states)
    np.testing.assert_allclose(decomposed.shares.sum(axis=0), decomposed.pooled, atol=1e-5)
