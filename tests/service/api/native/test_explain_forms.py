"""Replies of /explain as bytes; the route's own tests check their numbers."""

from __future__ import annotations

import json
from dataclasses import replace

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
from service.inference.explanation.cost import Side
from service.inference.explanation.options import ExplainOptions
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.spans import Span, SpanKind
from service.inference.explanation.token_matches import PairMatches, TokenMatch
from tests.service.harness import CONFIG, body_of, tokenized

HEADER = Header("a/model", "onnx", {})
WANTED = {"occlusion": 80, "decomposition": 1, "heads": 8}


def test_what_was_not_asked_for_is_absent() -> None:
    texts = [tokenized(2), tokenized(3)]
    found = json.loads(body_of(explain_json(HEADER, texts, [PairExplanation(0.5)])))
    assert found["results"][0].keys() == {"similarity", "texts"}
    assert found["results"][0]["texts"][0].keys() == {"tokens", "token_ids", "offsets", "truncated"}
    assert found["usage"] == {"inputs": 1, "tokens": 5}
    assert (found["model"], found["backend"]) == ("a/model", "onnx")


@pytest.mark.parametrize("kind", ["tokens", "words"])
@pytest.mark.parametrize("length", [1, 40])
def test_a_reply_is_no_larger_than_predicted(length: int, kind: SpanKind) -> None:
    texts = [tokenized(length), tokenized(length, seed=1)]
    rng = np.random.default_rng(0)
    matrix, losses = (rng.standard_normal(n).astype(np.float32) for n in ((length,) * 2, length))
    heads = rng.standard_normal((2, 4)).astype(np.float32)
    spans = [Span(1000 + n, 1001 + n, (n,)) for n in range(length)]
    found = PairExplanation(
        1 / 3, matrix, matrix, (losses, losses), (spans, spans), kind, heads, WANTED
    )
    options = ExplainOptions(0, None, pairs=True, occlusion=True, decomposition=True, heads=True)
    options = replace(options, spans=kind)
    sides = [Side(length, length, length)] * 2
    json_size, binary_size = (
        reply_bytes(options, sides, CONFIG, binary=binary) for binary in (False, True)
    )
    assert len(body_of(explain_json(HEADER, texts, [found]))) <= json_size
    assert sum(map(len, explain_safetensors(HEADER, texts, [found]))) <= binary_size
    if length > 1:
        assert binary_size < json_size / 2, "as the error of a reply in JSON says"
    matches = [TokenMatch(i, i, 1 / 3) for i in range(length)]
    written = matches_json(HEADER, texts, [PairMatches(0.5, matches)])
    assert len(body_of(written)) <= matches_bytes(texts)


def test_an_agreement_that_there_is_not_is_null_and_nan() -> None:
    texts, losses = [tokenized(2), tokenized(2)], np.ones(2, np.float32)
    spans = [Span(0, 1, (0,)), Span(2, 3, (1,))]
    shares = np.ones((2, 2), np.float32)
    found = [PairExplanation(0.5, shares, None, (losses, losses), (spans, spans))]
    read = json.loads(body_of(explain_json(HEADER, texts, found)))
    assert read["results"][0]["agreement"] == {"pairs": None}
    tensors = load(b"".join(explain_safetensors(HEADER, texts, found)))
    assert np.isnan(tensors["agreement.pairs"]).all()


def test_values_that_were_not_computed_are_null_and_nan() -> None:
    texts = [tokenized(2), tokenized(1)]
    spans = [Span(0, 1, (0, 1))], [Span(0, 1, (0,))]
    nothing = np.full((2, 1), np.nan, np.float32)
    losses = np.array([0.25], np.float32), np.array([np.nan], np.float32)
    heads = np.array([[0.5, np.nan]], np.float32)
    wanted = {"occlusion": 2, "decomposition": 1, "heads": 2}
    found = PairExplanation(0.5, None, nothing, losses, spans, "words", heads, wanted)
    read = json.loads(body_of(explain_json(HEADER, texts, [found])))["results"][0]
    assert read["decomposition"] is read["decomposition_error"] is None
    assert read["occlusion"] == [[0.25], [None]]
    assert read["heads"] == [[0.5, None]]
    assert read["partial"] is True
    assert read["computed"] == {"occlusion": 1, "decomposition": 0, "heads": 1}
    assert read["spans"] == [
        [{"start": 0, "end": 1, "tokens": [0, 1]}],
        [{"start": 0, "end": 1, "tokens": [0]}],
    ]
    content = b"".join(explain_safetensors(HEADER, texts, [found]))
    tensors = load(content)
    assert np.isnan(tensors["decomposition.0"]).all()
    assert np.isnan(tensors["decomposition_error"]).all()
    assert tensors["occlusion.0.a"].tolist() == [0.25]
    assert np.isnan(tensors["occlusion.0.b"]).all()
    np.testing.assert_array_equal(tensors["heads"], [[[0.5, np.nan]]])
    assert tensors["partial"].tolist() == [1]
    assert {name: tensors[f"computed.{name}"].tolist() for name in wanted} == {
        "occlusion": [1],
        "decomposition": [0],
        "heads": [1],
    }
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["spans"]) == [read["spans"]]
