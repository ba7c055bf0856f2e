"""transformers' forward passes with left-out tokens, for the scores of documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from tests.service.harness import Client

DOCUMENTS = ["the cat a b c", "b a the the cat z y", "x", "the cat . A b", "q r s"]


class Embedder:
    """Means of transformers' last states."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def rows(self, text: str, *masked: int) -> Any:
        """Return the states of the tokens that are not masked, `[S, H]`."""
        encoded = self.tokenizer(text, return_tensors="pt")
        encoded["attention_mask"][0, list(masked)] = 0
        with torch.inference_mode():
            states = self.model(**encoded).last_hidden_state[0].double().numpy()
        return states[encoded["attention_mask"][0].bool().numpy()]

    def score(self, query: str, document: str, *masked: int, of_query: Sequence[int] = ()) -> float:
        """Return the cosine of the means without some tokens."""
        one = self.rows(query, *of_query).mean(axis=0)
        other = self.rows(document, *masked).mean(axis=0)
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


class CrossEncoder:
    """Logits of transformers' classification of pairs."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def own(self, query: str, document: str, side: int = 1) -> list[int]:
        """Return the positions of the document's tokens, or of the query's with side 0."""
        ids = self.tokenizer(query, document).sequence_ids()
        return [place for place, sequence in enumerate(ids) if sequence == side]

    def score(self, query: str, document: str, *masked: int) -> float:
        """Return the logit of a pair without some tokens."""
        encoded = self.tokenizer(query, document, return_tensors="pt")
        encoded["attention_mask"][0, list(masked)] = 0
        with torch.inference_mode():
            return float(self.model(**encoded).logits[0, 0])


async def ranked(client: Client, query: str, **fields: Any) -> Any:
    """Return the reply to a ranking of `DOCUMENTS`."""
    body = {"query": query, "documents": DOCUMENTS} | fields
    answer = await client.post("/rank", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
