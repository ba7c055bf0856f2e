"""Handmade replies: each text gets its own parts, and parts of a call become one result."""

from __future__ import annotations

import numpy as np
import pytest

from headscope import Verification
from headscope.calls import read_encodings, read_verification, worst
from headscope.heads import read_attention
from headscope.reading import NOT_OURS
from headscope.reading import binary as parsed
from model.numerics.comparison import TOLERANCES, Comparison, Key
from service.api.native.verify import report
from tests.clients.python.fake import binary
from tests.service.api.native.test_rank import compared

LENGTHS = range(2, 14)
TEXTS = ["x" * length for length in LENGTHS]


def test_each_text_gets_what_is_its_own():
    """With twelve texts, where 1 and 11 are easily confused."""
    tensors = {"pooled_shift": np.arange(12, dtype=np.float32)}
    for i, size in enumerate(LENGTHS):
        tensors[f"attention.{i}.indices"] = np.full((1, 1, size, 1), i, np.int32)
        tensors[f"attention.{i}.values"] = np.full((1, 1, size, 1), i, np.float16)
        tensors[f"stats.{i}.entropy"] = np.full((1, 1), i, np.float32)
        tensors[f"rollout.{i}"] = np.full((size, size), i, np.float32)
    replies = read_attention(parsed(binary(TEXTS, tensors, layers=[4], heads=[2])), TEXTS)
    for i, (text, found) in enumerate(zip(TEXTS, replies, strict=True)):
        start = sum(LENGTHS[:i])
        assert (found.texts, found.layers, found.heads) == ((text,), [4], [2])
        assert (found.model, found.backend, found.truncated) == ("m", "onnx", False)
        assert found.token_ids == list(range(start, start + len(text)))
        assert found.tokens == list(text)
        names = {"attention.indices", "attention.values", "stats.entropy", "rollout"}
        assert found.tensors.keys() == names | {"pooled_shift"}
        assert found.statistics.keys() == {"entropy"}
        assert found.rollout.shape == (len(text), len(text))
        assert {float(tensor.flat[0]) for tensor in found.tensors.values()} == {float(i)}


@pytest.mark.parametrize(
    "content",
    [
        binary(TEXTS[1:]),
        binary([*TEXTS, "x"]),
        binary(TEXTS, {"pooled": np.zeros((13, 4), np.float32)}),
        binary([*TEXTS[:-1], "x"], tokens=[list(text) for text in TEXTS]),
        binary(TEXTS)[:-1],
    ],
)
def test_another_number_of_texts_is_no_reply(content):
    with pytest.raises(NOT_OURS):
        read_encodings(parsed(content), TEXTS)


def test_of_several_verifications_the_worst_counts():
    """The replies have the route's format."""

    def one(wrong, inputs):
        differences = compared(wrong=wrong).differences
        content = report(Comparison(differences=differences, inputs=inputs), TOLERANCES["fp32"])
        return read_verification(content, "x" * inputs)

    found = worst([one(None, 1), one(Key("attention", 0, 1), 2)])
    assert isinstance(found, Verification)
    assert (found.passed, found.inputs, found.task) == (False, 3, None)
    assert [(each.layer, each.head, each.passed) for each in found.attention] == [
        *((0, 0, True), (0, 1, False))
    ]
    bad = found.attention[1]
    assert (bad.max_abs_diff, bad.min_cosine, bad.atol) == (0.25, 0.5, 1e-5)
    assert bad.cosine_at_least == 0.99999
    assert [(each.layer, each.passed) for each in found.hidden] == [(0, True), (1, True)]
    assert found.pooled.passed
