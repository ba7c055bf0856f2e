"""Fields of `POST /predict` that TEI does not have: pictures and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from service.api.tei.predict_fields import PredictRequest, predictions
from service.inference.tokenization.inputs import Picture

PICTURE = {"image": "aGk="}


@pytest.mark.parametrize(
    ("inputs", "batch", "pictures"),
    [
        (PICTURE, False, [True]),
        ([PICTURE, PICTURE], True, [True, True]),
        ([PICTURE, ["a"]], True, [True, False]),
        ([["a", "b"]], True, [False]),
        (["a", "b"], False, [False]),
    ],
)
def test_a_picture_is_an_input_and_a_list_of_them_a_batch(
    inputs: Any, batch: bool, pictures: list[bool]
) -> None:
    found = PredictRequest.model_validate({"inputs": inputs}).inputs
    assert found.batch == batch
    assert [isinstance(given, Picture) for given in found.texts] == pictures


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [PICTURE, "a"]},
        {"inputs": {"picture": "aGk="}},
        {"inputs": PICTURE, "labels": []},
        {"inputs": PICTURE, "labels": [""]},
        {"inputs": PICTURE, "labels": ["a", "a"]},
        {"inputs": PICTURE, "top_k": 0},
    ],
    ids=str,
)
def test_what_is_refused(fields: Any) -> None:
    with pytest.raises(ValidationError):
        PredictRequest.model_validate(fields)


def test_the_best_label_is_first_and_ties_keep_their_order() -> None:
    logits, scores = np.array([1.0, 2.0, 2.0]), np.array([0.2, 0.4, 0.4])
    assert [(label["label"], label["score"]) for label in predictions(logits, "abc", scores)] == [
        ("b", 0.4),
        ("c", 0.4),
        ("a", 0.2),
    ]
