"""The documented reply of /explain has every field that is sent, and no other type."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel

from service.api.native.explain_forms import explain_json
from service.api.native.explain_replies import ExplainReply, ExplainResult
from service.api.native.texts import Header
from service.inference.explanation.pairs import PairExplanation
from service.inference.explanation.spans import Block, Span
from tests.service.harness import body_of, tokenized


def test_a_reply_is_what_is_documented() -> None:
    spans = [Span(0, 1, (0, 1))], [Span(0, 1, (0,))]
    losses = np.array([0.25], np.float32), np.array([np.nan], np.float32)
    shares = np.ones((2, 1), np.float32)
    heads = np.array([[0.5, np.nan]], np.float32)
    wanted = {"occlusion": 2, "decomposition": 1, "heads": 2}
    texts = [tokenized(2), tokenized(1)]
    for decomposition in (shares, shares * np.nan):
        found = PairExplanation(0.5, shares, decomposition, losses, spans, "words", heads, wanted)
        content = body_of(explain_json(Header("m", "onnx", {}), texts, [found]))
        read = ExplainReply.model_validate_json(content, strict=True)
        (result,) = read.results
        assert fields_of(result) == set(ExplainResult.model_fields) - {"matches"}
        assert result.spans is not None
        assert result.spans[0][0].tokens == [0, 1]
        assert result.occlusion == ([0.25], [None])
        assert (result.decomposition is None) == bool(np.isnan(decomposition).any())


def test_blocks_of_a_picture_are_what_is_documented() -> None:
    spans = [Span(0, 0, (0,))], [Block((0, 1), (2, 4), (3, 4))]
    losses = np.array([0.25], np.float32), np.array([0.5], np.float32)
    found = PairExplanation(0.5, None, None, losses, spans, wanted={"occlusion": 2})
    content = body_of(explain_json(Header("m", "onnx", {}), [tokenized(1)] * 2, [found]))
    (result,) = ExplainReply.model_validate_json(content, strict=True).results
    assert result.spans is not None
    assert [span.model_dump() for spans in result.spans for span in spans] == [
        {"start": 0, "end": 0, "tokens": [0]},
        {"rows": (0, 1), "columns": (2, 4), "tokens": [3, 4]},
    ]


def fields_of(model: BaseModel) -> set[str]:
    return set(model.model_fields_set)
