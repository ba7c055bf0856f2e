"""Requests, replies and errors in the forms of Jina and of Cohere's first version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.harness import Client

pytestmark = pytest.mark.anyio


URL = "/v1/rerank"
BODY: dict[str, Any] = {"model": "jina-reranker-v2", "query": QUERY, "documents": TEXTS}


async def test_replies_have_the_fields_of_both(ranking: Client, ranker: Ranker) -> None:
    """Documents come as objects unless `return_documents` is false, as Jina's do."""
    scores = ranker.scores(QUERY, TEXTS)
    for asked in (None, True, False):
        fields = {} if asked is None else {"return_documents": asked}
        answer = await ranking.post(URL, json=BODY | fields | {"top_n": 3})
        reply = answer.json()
        assert reply.keys() - {"warnings"} == {"id", "model", "usage", "results", "meta"}
        tokens = int(answer.headers["x-compute-tokens"])
        assert reply["usage"] == {"total_tokens": tokens, "prompt_tokens": tokens}
        assert reply["meta"]["api_version"] == {"version": "1"}
        assert reply["model"] == answer.headers["x-model"] == "cross"
        order = np.argsort(-scores, kind="stable")[:3].tolist()
        assert [one["index"] for one in reply["results"]] == order
        for one in reply["results"]:
            assert one["relevance_score"] == pytest.approx(float(scores[one["index"]]), abs=1e-4)
            text = None if asked is False else {"text": TEXTS[one["index"]]}
            assert one.get("document") == text
