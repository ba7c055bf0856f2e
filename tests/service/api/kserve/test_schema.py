"""JSON of requests: lists for clients that can send only scalars, and each output's form."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from pydantic import ValidationError

from service.api.kserve.schema import InferParameters, InferRequest, inlined
from tests.service.api.kserve.wire import in_json


@pytest.mark.parametrize(
    ("given", "found"),
    [([0, -1], [0, -1]), ("0,-1", [0, -1]), (" 3 ", [3]), (2, [2]), (None, None)],
)
def test_lists_of_indices(given: Any, found: list[int] | None) -> None:
    asked = {"layers": given, "heads": given}
    assert InferParameters(**asked).heads == found
    assert jsonschema_rs.is_valid(InferParameters.model_json_schema(), asked)


@pytest.mark.parametrize("given", ["", "1,", "1;2", [], [1, 1], ["1"], True, {}])
def test_what_is_no_list_of_indices(given: Any) -> None:
    with pytest.raises(ValidationError):
        InferParameters(layers=given)
    assert not jsonschema_rs.is_valid(InferParameters.model_json_schema(), {"layers": given})


@pytest.mark.parametrize("given", [1.0, "1,1"])
def test_what_json_schema_takes_for_a_list_of_indices(given: Any) -> None:
    with pytest.raises(ValidationError):
        InferParameters(layers=given)


def test_an_outputs_own_form_counts_first() -> None:
    outputs = [{"name": "tokens", "parameters": {"binary_data": False}}, {"name": "pooled"}]
    body = in_json(["a"], [1], outputs=outputs, parameters={"binary_data_output": True})
    assert InferRequest.model_validate(body).wanted == {"tokens": False, "pooled": True}
    assert InferRequest.model_validate(in_json(["a"], [1])).wanted == {"pooled": False}


def test_a_schema_without_references_takes_the_same() -> None:
    """JSON Schema's own validator, over both forms."""
    whole = InferRequest.model_json_schema()
    flat = inlined(whole)
    assert "$ref" in str(whole)
    assert "$ref" not in str(flat)
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    for taken, body in (
        (True, {"inputs": [text]}),
        (True, {"inputs": [text], "outputs": [{"name": "attention"}], "parameters": {"layer": 0}}),
        (False, {"inputs": [text], "parameters": {"dimensions": 0}}),
        (False, {"inputs": [text | {"parameters": {"unknown": 1}}]}),
        (False, {"inputs": [text], "outputs": [{"name": "unknown"}]}),
    ):
        for schema in (whole, flat):
            assert jsonschema_rs.is_valid(schema, body) == taken, body
