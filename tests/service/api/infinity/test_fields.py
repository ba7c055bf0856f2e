"""Fields of all of Infinity's requests and replies."""

from __future__ import annotations

import time

from service.api.infinity.fields import InfinityRequest, envelope
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
