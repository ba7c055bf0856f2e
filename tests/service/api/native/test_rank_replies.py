"""Replies of /rank have the fields and types of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.native.rank_replies import RankReply

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"query": "a cat", "documents": ["a dog", "The cat and the dog", ""]}


@pytest.mark.parametrize("explain", ["none", "tokens", "contrast"])
async def test_replies_are_as_documented(client: httpx.AsyncClient, explain: str) -> None:
    """Offsets are of the caller's text, in code points; every field is documented."""
    reply = (await client.post("/rank", json=BODY | {"explain": explain})).json()
    documented = RankReply.model_validate(reply).model_dump(exclude_unset=True, mode="json")
    assert documented == reply
    for result in reply["results"] if explain == "tokens" else ():
        text = BODY["documents"][result["index"]].lower()
        pieces = [text[start:end] for start, end in result["offsets"][1:-1]]
        assert pieces == [token.removeprefix("##") for token in result["tokens"][1:-1]]
    for row in reply["contrast"]["words"] if explain == "contrast" else ():
        for side, spans in enumerate(row["spans"]):
            text = BODY["documents"][reply["contrast"]["documents"][side]]
            assert {text[start:end].casefold() for start, end in spans} <= {row["word"]}
