"""LitServe around sentence-transformers: `python litserve_server.py FOLDER PORT`.

Runs in the peer's own environment.

The configuration was the fastest of several on two cores: one worker with both cores takes up to 64
requests at once, which sentence-transformers sorts by length and computes eight at a time. Batches
of 32, its default, give 0.6 of the throughput, since texts of different lengths are padded to one
length; two workers of one core each are no faster.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
from sentence_transformers import SentenceTransformer

REQUESTS, TEXTS, WAIT_SECONDS = 64, 8, 0.005


class Embed(litserve.LitAPI):
    """API that takes {"input": text} and returns {"embedding": [number, …]}."""

    def __init__(self, folder: str) -> None:
        super().__init__(max_batch_size=REQUESTS, batch_timeout=WAIT_SECONDS)
        self.folder = folder

    def setup(self, device: str) -> None:
        self.model = SentenceTransformer(self.folder, device=device)

    def decode_request(self, request: dict[str, str]) -> str:
        return request["input"]

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, batch_size=TEXTS, show_progress_bar=False)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"embedding": output.tolist()}


def main() -> None:
    folder, port = sys.argv[1], int(sys.argv[2])
    server = litserve.LitServer(Embed(folder), accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error")


if __name__ == "__main__":
    main()
