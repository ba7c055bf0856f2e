"""Replies of /explain as bytes; their numbers are held in the route's own tests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load

from service.api.native.explain_forms import (
    explain_json,
    explain_safetensors,
    matches_bytes,
    matches_json,
    reply_bytes,
)
from service.api.native.texts import Header
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.token_matches import PairMatches, TokenMatch
from tests.service.harness import CONFIG, tokenized

HEADER = Header("a/model", "onnx", {})


def test_what_was_not_asked_for_is_absent() -> None:
    texts = [tokenized(2), tokenized(3)]
    found = json.loads(b"".join(explain_json(HEADER, texts, [PairExplanation(0.5)])))
    assert found["results"][0].keys() == {"similarity", "texts"}
    assert found["results"][0]["texts"][0].keys() == {"tokens", "token_ids", "offsets", "truncated"}
    assert found["usage"] == {"inputs": 1, "tokens": 5}
    assert (found["model"], found["backend"]) == ("a/model", "onnx")


@pytest.mark.parametrize("length", [1, 40])
def test_a_reply_is_no_larger_than_predicted(length: int) -> None:
    texts = [tokenized(length), tokenized(length, seed=1)]
    rng = np.random.default_rng(0)
    matrix, losses = (rng.standard_normal(n).astype(np.float32) for n in ((length,) * 2, length))
    heads = rng.standard_normal((2, 4)).astype(np.float32)
    found = PairExplanation(1 / 3, matrix, matrix, (losses, losses), heads)
    options = ExplainOptions(0, None, pairs=True, occlusion=True, decomposition=True, heads=True)
    json_size, binary_size = (
        reply_bytes(options, [(texts[0], texts[1])], CONFIG, binary=binary)
        for binary in (False, True)
    )
    assert sum(map(len, explain_json(HEADER, texts, [found]))) <= json_size
    assert sum(map(len, explain_safetensors(HEADER, texts, [found]))) <= binary_size
    if length > 1:
        assert binary_size < json_size / 2, "as the error of a reply in JSON says"
    matches = [TokenMatch(i, i, 1 / 3) for i in range(length)]
    written = matches_json(HEADER, texts, [PairMatches(0.5, matches)])
    assert sum(map(len, written)) <= matches_bytes(texts)


def test_an_agreement_that_there_is_not_is_null_and_nan() -> None:
    texts, losses = [tokenized(2), tokenized(2)], np.ones(2, np.float32)
    found = [PairExplanation(0.5, np.ones((2, 2), np.float32), None, (losses, losses))]
    read = json.loads(b"".join(explain_json(HEADER, texts, found)))
    assert read["results"][0]["agreement"] == {"pairs": None}
    tensors = load(b"".join(explain_safetensors(HEADER, texts, found)))
    assert np.isnan(tensors["agreement.pairs"]).all()
