"""Pooled vectors of several layers, in order, against sentence-transformers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling as Library

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from service.engines.contract import Output, Pooling
from service.inference.encoding import EncodeOptions, TextEncoding
from service.inference.layer_vectors import Reduction, finished

STATES = np.random.default_rng(0).standard_normal((3, 5, 8), np.float32)
SEVERAL: dict[str, Any] = {"layers": (2, 0, 1), "normalize": False}


@pytest.mark.parametrize("mode", ["mean", "max", "cls"])
@pytest.mark.parametrize("first", [0, 2])
def test_each_state_is_pooled_as_sentence_transformers_does(mode: Any, first: int) -> None:
    options = EncodeOptions(0, tokens=False, pooled=True, **SEVERAL)
    found = Reduction(options, Pooling(0, mode, first))(Output(list(STATES)))
    assert found.tokens is None
    assert found.pooled is not None
    mask = torch.tensor([[0] * first + [1] * (5 - first)])
    if mode == "cls":  # the library takes the first token, masked or not
        states = torch.from_numpy(STATES[:, first:])
        mask = mask[:, first:]
    else:
        states = torch.from_numpy(STATES)
    for own, state in zip(found.pooled, states, strict=True):
        features = {"token_embeddings": state[None], "attention_mask": mask}
        wanted = Library(8, mode)(features)["sentence_embedding"][0]
        np.testing.assert_allclose(own, wanted.numpy(), rtol=1e-6, atol=1e-6)


def test_states_are_copied_out_of_their_batch() -> None:
    options = EncodeOptions(0, tokens=True, pooled=False, **SEVERAL)
    found = Reduction(options, Pooling(0, "mean"))(Output(list(STATES)))
    assert found.pooled is None
    np.testing.assert_array_equal(found.tokens, STATES)
    assert not np.shares_memory(found.tokens, STATES)


def test_each_text_keeps_its_own() -> None:
    vectors = TextVectors(SentenceConfig(max_length=9), 8, {})
    texts = [TextEncoding(None, STATES[:, index]) for index in range(5)]
    several = EncodeOptions(0, tokens=False, pooled=True, dimensions=3, **SEVERAL)
    found = asyncio.run(finished(texts, several, vectors))
    for index, own in enumerate(found):
        np.testing.assert_array_equal(own.pooled, STATES[:, index, :3])
    one = EncodeOptions(0, tokens=False, pooled=True, normalize=False)
    texts = [TextEncoding(None, row) for row in STATES[0]]
    found = asyncio.run(finished(texts, one, vectors))
    np.testing.assert_array_equal([own.pooled for own in found], STATES[0])


@pytest.mark.parametrize("layers", [(), (2, 0, 1)])
def test_vectors_are_completed_where_they_are_computed(layers: tuple[int, ...]) -> None:
    vectors = TextVectors(SentenceConfig(max_length=9), 8, {})
    options = EncodeOptions(
        0, tokens=False, pooled=True, dimensions=3, normalize=True, layers=layers
    )
    pooled = STATES[:, 0]
    output = Output([] if not layers else list(STATES[:, :1]), None if layers else pooled[0])
    found = Reduction(options, Pooling(0, "mean"), vectors)(output).pooled
    wanted = torch.nn.functional.normalize(torch.from_numpy(pooled[:, :3]), dim=-1).numpy()
    np.testing.assert_allclose(found, wanted if layers else wanted[0], rtol=1e-6)


def test_without_pooled_vectors_nothing_changes() -> None:
    texts = [TextEncoding(STATES[0], None)]
    vectors = TextVectors(SentenceConfig(max_length=9), 8, {})
    options = EncodeOptions(0, tokens=True, pooled=False)
    assert asyncio.run(finished(texts, options, vectors)) == texts
