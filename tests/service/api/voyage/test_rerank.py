"""`POST /v1/rerank` in Voyage's form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.service.api.rankers import QUERY, TEXTS, Ranker
from tests.service.harness import Client

pytestmark = pytest.mark.anyio
URL = "/v1/rerank"
BODY: dict[str, Any] = {"model": "rerank-2.5", "query": QUERY, "documents": TEXTS}


async def test_voyages_fields_are_answered_in_its_form(ranking: Client, ranker: Ranker) -> None:
    scores = ranker.scores(QUERY, TEXTS)
    order = np.argsort(-scores, kind="stable").tolist()
    for fields in ({"truncation": True}, {"top_k": 2}, {"top_k": 3, "return_documents": True}):
        answer = await ranking.post(URL, json=BODY | fields)
        reply = answer.json()
        assert reply.keys() - {"warnings"} == {"object", "data", "model", "usage"}
        assert reply["usage"] == {"total_tokens": int(answer.headers["x-compute-tokens"])}
        assert [rank["index"] for rank in reply["data"]] == order[: fields.get("top_k")]
        for rank in reply["data"]:
            score = pytest.approx(float(scores[rank["index"]]), abs=1e-4)
            assert rank["relevance_score"] == score
            text = TEXTS[rank["index"]] if "return_documents" in fields else None
            assert rank.get("document") == text


async def test_a_long_document_is_cut_unless_truncation_is_false(ranking: Client) -> None:
    documents = {"documents": ["a", "b " * 600]}
    assert (await ranking.post(URL, json=BODY | documents | {"truncation": True})).is_success
    refused = await ranking.post(URL, json=BODY | documents | {"truncation": False})
    assert refused.status_code == 422
    assert "documents[1] has" in refused.json()["detail"]
