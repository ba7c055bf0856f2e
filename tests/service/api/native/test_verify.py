"""Form of a report of `POST /verify`, and the requests it accepts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from model.numerics.comparison import TOLERANCES, Comparison, Difference, Key, tolerances_of
from service.api.native.replies import VerifyReply
from service.api.native.verify import VerifyRequest, report

GOOD, BAD = Difference(1e-6, 1.0, passed=True), Difference(0.25, 0.5, passed=False)


def compared(*, wrong: Key | None = None) -> Comparison:
    """Return a comparison of two hidden states, a layer of two heads, and vectors of four texts."""
    keys = [Key("hidden", 0), Key("hidden", 1), Key("attention", 0, 0), Key("attention", 0, 1)]
    differences = {key: BAD if key == wrong else GOOD for key in [*keys, Key("pooled")]}
    return Comparison(differences=differences, inputs=4)


def test_every_tensor_is_named_with_its_difference_and_its_tolerance() -> None:
    found = report(compared(wrong=Key("attention", 0, 1)), TOLERANCES["fp32"])
    good = {"max_abs_diff": 1e-6, "min_cosine": 1.0, "passed": True}
    bad = {"max_abs_diff": 0.25, "min_cosine": 0.5, "passed": False}
    hidden = {"atol": 1e-4, "rtol": 1e-5, "cosine_at_least": 0.99999}
    maps = {"atol": 1e-5, "rtol": 0.0, "cosine_at_least": 0.99999}
    pooled = {"atol": 1e-5, "rtol": 0.0, "cosine_at_least": 0.99999}
    assert found == {
        "passed": False,
        "reference": "torch",
        "against": "onnx",
        "inputs": 4,
        "hidden": [{"layer": layer} | good | hidden for layer in (0, 1)],
        "attention": [
            {"layer": 0, "head": 0} | good | maps,
            {"layer": 0, "head": 1} | bad | maps,
        ],
        "pooled": good | pooled,
    }


def test_the_tolerances_are_those_of_the_precision() -> None:
    found = report(compared(), TOLERANCES["int8"])
    assert found["passed"] is True
    assert (found["hidden"][1]["atol"], found["pooled"]["atol"]) == (10.0, 1.0)


def test_a_report_has_the_documented_fields() -> None:
    found = report(compared(), TOLERANCES["fp32"])
    reported = VerifyReply.model_validate(found).model_dump(exclude_none=True)
    assert reported.keys() == found.keys()
    for name in ("hidden", "attention"):
        assert [set(entry) - {"cosine_at_least"} for entry in found[name]] == [
            set(entry) for entry in reported[name]
        ]


def test_a_task_head_has_its_difference() -> None:
    comparison = compared()
    comparison.differences[Key("task")] = BAD
    found = report(comparison, TOLERANCES["fp32"])
    tolerance = {"atol": 1e-4, "rtol": 1e-5, "cosine_at_least": -1.0}
    assert found["task"] == {"max_abs_diff": 0.25, "min_cosine": 0.5, "passed": False} | tolerance
    assert VerifyReply.model_validate(found).task is not None


def test_a_decoder_has_differences_of_its_own() -> None:
    comparison = compared()
    keys = [Key("decoder_hidden", 0), Key("cross_queries", 0), Key("logprobs")]
    keys += [Key("decoder_attention", 0, 1), Key("cross_attention", 1, 0)]
    comparison.differences |= dict.fromkeys(keys, BAD)
    found = report(comparison, tolerances_of("fp32", 1, 2))
    assert len(found["hidden"]) == len(found["attention"]) == 2
    reported = VerifyReply.model_validate(found).decoder
    assert reported is not None
    assert [(each.layer, each.head) for each in reported.cross_attention] == [(1, 0)]
    assert [(each.layer, each.head) for each in reported.attention] == [(0, 1)]
    assert [each.layer for each in (*reported.hidden, *reported.cross_queries)] == [0, 0]
    assert (reported.logprobs.max_abs_diff, reported.logprobs.atol) == (0.25, 1e-4)


@pytest.mark.parametrize(
    "body", [{}, {"inputs": "a", "layer": 0}, {"inputs": "a", "truncate": 1}], ids=str
)
def test_a_request_is_strict(body: dict[str, Any]) -> None:
    assert VerifyRequest(inputs="a").truncate is False
    with pytest.raises(ValidationError):
        VerifyRequest.model_validate(body)
