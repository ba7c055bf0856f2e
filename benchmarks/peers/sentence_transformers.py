"""sentence-transformers in this process, at its defaults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from benchmarks.harness.timing import wall_seconds


class SentenceTransformersPeer:
    """Checkpoint in sentence-transformers on the CPU."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = SentenceTransformer(str(checkpoint), device="cpu")

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        """Return the vectors `[text, H]` that sentence-transformers computes by itself."""
        return self._model.encode(texts, show_progress_bar=False)

    def seconds(self, texts: list[str]) -> float:
        """Return the seconds for all texts, at the defaults."""
        return wall_seconds(lambda: self.encode_texts(texts))

    def lengths(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text, truncated to the model's limit."""
        limit = self._model.max_seq_length
        encoded = self._model.tokenizer(texts, truncation=True, max_length=limit)
        return [len(ids) for ids in encoded["input_ids"]]
