"""Scores of a cross-encoder by sentence-transformers, and texts to rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import CrossEncoder

QUERY = "the cat a b"
TEXTS = ["the cat . x", "y z the the", "a b c d e f", "", "c b a", "q " * 60]


class Ranker:
    """Cross-encoder of sentence-transformers."""

    def __init__(self, model: CrossEncoder) -> None:
        self._model = model

    def logits(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Return the logit of each pair."""
        return np.asarray(self._model.predict(list(pairs), activation_fn=torch.nn.Identity()))

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """Return the probability of each text."""
        logits = torch.from_numpy(self.logits([(query, text) for text in texts]))
        return torch.sigmoid(logits).numpy()
