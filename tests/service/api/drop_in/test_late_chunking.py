"""`late_chunking` of Jina's clients, against transformers' token vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from service.api.drop_in.late_chunking import joined
from service.errors import Unprocessable
from service.inference.tokenization.inputs import TokenIds
from tests.service.api.openai.test_embeddings import URL

pytestmark = pytest.mark.anyio

TEXTS = ["Berlin is a capital.", "It has a river.\n", "Its streets are wide."]
WHOLE = "Berlin is a capital. It has a river.\nIts streets are wide."
LATE: dict[str, Any] = {"input": TEXTS, "late_chunking": True, "normalized": False}


async def test_each_input_is_pooled_from_the_whole_text(
    client: httpx.AsyncClient, small_checkpoint: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_checkpoint)
    model: Any = AutoModel.from_pretrained(small_checkpoint).eval()
    with torch.no_grad():
        states = model(**tokenizer(WHOLE, return_tensors="pt")).last_hidden_state[0, 1:-1]
    lengths = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS]
    wanted = [part.mean(dim=0).numpy() for part in states.split(lengths)]
    reply = await client.post(URL, json=LATE)
    assert reply.status_code == 200, reply.text
    items = reply.json()["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    found = [item["embedding"] for item in items]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_a_space_separates_inputs_without_white_space() -> None:
    text, spans = joined(TEXTS)
    assert text == WHOLE
    assert [text[start:end] for start, end in spans] == TEXTS
    with pytest.raises(Unprocessable, match=r"late_chunking: input\[1\] is no text"):
        joined(["a", TokenIds((101, 102))])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input": ["a", "\n"]}, "late_chunking: input[1] is [1, 2), which has no token"),
        ({"input": ["word " * 300] * 2}, "the joined input has 602 tokens; at most 512 fit"),
        ({"input": ["word " * 300] * 2, "truncate": True}, "late_chunking: input[1] is [1500,"),
        ({"truncate_prompt_tokens": 9}, "late_chunking: leave out"),
    ],
)
async def test_what_does_not_fit_is_refused(
    client: httpx.AsyncClient, body: dict[str, Any], says: str
) -> None:
    reply = await client.post(URL, json=LATE | body)
    assert reply.status_code in (400, 422)
    assert says in reply.json()["error"]["message"]
