"""Fields of all of Infinity's requests and replies."""

from __future__ import annotations

import time

import jsonschema_rs
import pytest
from pydantic import TypeAdapter, ValidationError

from service.api.infinity.fields import MAX_CHARACTERS, InfinityRequest, Text, envelope
from service.inference.timings import Timings


def test_infinitys_name_of_no_model_is_none() -> None:
    """Infinity's clients always send a model name."""
    assert InfinityRequest(model="default/not-specified").model is None
    assert InfinityRequest(model="a").model == "a"
    assert InfinityRequest().model is None


def test_replies_have_ids_of_their_own() -> None:
    first, second = (envelope("list", "m", Timings(3, 0.0, 0.0)) for _ in range(2))
    assert first["id"].startswith("infinity-")
    assert first["id"] != second["id"]
    assert abs(first["created"] - time.time()) < 60
    assert first["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_the_limit_of_a_text_counts_the_spaces_around_it() -> None:
    """As in the document, which cannot tell that spaces are stripped."""
    text: TypeAdapter[str] = TypeAdapter(Text)
    for given in (f" a{' ' * (MAX_CHARACTERS - 2)}", "a" * MAX_CHARACTERS):
        assert text.validate_python(given) == given.strip()
        assert jsonschema_rs.is_valid(text.json_schema(), given)
        with pytest.raises(ValidationError, match=f"at most {MAX_CHARACTERS} characters"):
            text.validate_python(f"{given} ")
        assert not jsonschema_rs.is_valid(text.json_schema(), f"{given} ")
