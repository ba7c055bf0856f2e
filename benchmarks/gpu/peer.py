"""The other side: sentence-transformers in float16, with PyTorch's fused attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.gpu.encoding import Segments


class Peer:
    """A checkpoint in sentence-transformers; `batch` counts texts."""

    def __init__(self, checkpoint: Path, device: str, max_tokens: int, *, compiled: bool) -> None:
        self._device = device
        self._model = SentenceTransformer(
            str(checkpoint),
            device=device,
            model_kwargs={"dtype": torch.float16, "attn_implementation": "sdpa"},
        )
        self._model.max_seq_length = max_tokens
        if compiled:
            self._model[0].auto_model.compile(dynamic=True)

    def encode(self, texts: Sequence[Segments], batch: int) -> None:
        """The vectors of texts that are tokenised, sorted by length, on the host again."""
        ordered = sorted(texts, key=lambda text: len(text[0]), reverse=True)
        for start in range(0, len(ordered), batch):
            features = padded(ordered[start : start + batch])
            moved = {name: torch.from_numpy(ids).to(self._device) for name, ids in features.items()}
            with torch.inference_mode():
                self._model(moved)["sentence_embedding"].cpu()

    def encode_texts(self, texts: list[str], batch: int) -> np.ndarray:
        """`[text, H]`, as sentence-transformers does it alone."""
        return self._model.encode(texts, batch_size=batch, show_progress_bar=False)


def padded(texts: Sequence[Segments]) -> dict[str, np.ndarray]:
    """What the model takes, `[B, S]` each."""
    lengths = np.array([len(ids) for ids, _ in texts])
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids, segments = np.zeros_like(mask), np.zeros_like(mask)
    ids[mask == 1] = np.concatenate([ids for ids, _ in texts])
    segments[mask == 1] = np.concatenate([segments for _, segments in texts])
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
