"""sentence-transformers in this process: at its defaults, or in float16 with fused attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.harness.encoding import Segments
from benchmarks.harness.timing import wall_seconds

BATCH_TEXTS = 32
"""Default number of texts of a batch in sentence-transformers."""
HALF: dict[str, Any] = {"dtype": torch.float16, "attn_implementation": "sdpa"}


class SentenceTransformersPeer:
    """A checkpoint in sentence-transformers, which sorts texts by length; `batch` counts texts."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "cpu",
        model_kwargs: dict[str, Any] | None = None,
        *,
        max_tokens: int | None = None,
        compiled: bool = False,
    ) -> None:
        self._device = device
        self._model = SentenceTransformer(
            str(checkpoint), device=device, model_kwargs=model_kwargs or {}
        )
        if max_tokens is not None:
            self._model.max_seq_length = max_tokens
        if compiled:
            self._model[0].auto_model.compile(dynamic=True)

    def encode(self, texts: Sequence[Segments], batch: int) -> None:
        """Compute the vectors of tokenised texts, sorted by length, and copy them to the host."""
        ordered = sorted(texts, key=lambda text: len(text[0]), reverse=True)
        for start in range(0, len(ordered), batch):
            features = padded(ordered[start : start + batch])
            moved = {name: torch.from_numpy(ids).to(self._device) for name, ids in features.items()}
            with torch.inference_mode():
                self._model(moved)["sentence_embedding"].cpu()

    def encode_texts(self, texts: list[str], batch: int = BATCH_TEXTS) -> np.ndarray:
        """Return the vectors `[text, H]` that sentence-transformers computes by itself."""
        return self._model.encode(texts, batch_size=batch, show_progress_bar=False)

    def seconds(self, texts: list[str]) -> float:
        """Return the seconds for all texts, at the defaults."""
        return wall_seconds(lambda: self.encode_texts(texts))

    def lengths(self, texts: list[str]) -> list[int]:
        """Return the number of tokens of each text, truncated to the model's limit."""
        limit = self._model.max_seq_length
        encoded = self._model.tokenizer(texts, truncation=True, max_length=limit)
        return [len(ids) for ids in encoded["input_ids"]]


def padded(texts: Sequence[Segments]) -> dict[str, np.ndarray]:
    """Return the model's padded inputs, `[B, S]` each."""
    lengths = np.array([len(ids) for ids, _ in texts])
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids, segments = np.zeros_like(mask), np.zeros_like(mask)
    ids[mask == 1] = np.concatenate([ids for ids, _ in texts])
    segments[mask == 1] = np.concatenate([segments for _, segments in texts])
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
