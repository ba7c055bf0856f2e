"""Ids and `meta` of replies in Cohere's form."""

from __future__ import annotations

import uuid

import pytest

from service.api.cohere.meta import embedded, new_id, searched
from service.inference.text_warnings import Warnings
from service.inference.timings import Timings


@pytest.mark.parametrize(("documents", "units"), [(1, 1), (100, 1), (101, 2)])
def test_a_unit_of_search_has_up_to_a_hundred_documents(documents: int, units: int) -> None:
    """https://docs.cohere.com/docs/how-does-cohere-pricing-work"""
    meta = searched("2", documents, Timings(7, 0.0, 0.0))
    assert meta == {"api_version": {"version": "2"}, "billed_units": {"search_units": units}}


def test_ids_are_uuids() -> None:
    assert uuid.UUID(new_id()) != uuid.UUID(new_id())
    assert embedded("2", Timings(7, 0.0, 0.0))["billed_units"] == {"input_tokens": 7}


def test_warnings_are_sentences() -> None:
    timings = Timings(7, 0.0, 0.0, warnings=Warnings(truncated=1))
    warnings = ["1 text was cut to the most tokens"]
    assert embedded("2", timings)["warnings"] == searched("2", 1, timings)["warnings"] == warnings
