"""The ways of embedding in this process: the service without HTTP, and sentence-transformers."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from model.artifact.manifest import TOKENIZER
from service.api.native.encode import EncodeRequest
from service.app import token_limits
from service.artifacts import open_artifact
from service.engines.onnx import OnnxEngine
from service.inference.core import Bounds, Predictor
from service.inference.engine_pool import EnginePool
from service.inference.tokenizer import TextTokenizer
from service.scheduler.admission import BatchLimits
from service.settings import Settings
from service.telemetry.metrics import Metrics


class InProcess:
    """The service's own way of a request, without HTTP."""

    def __init__(self, artifact_folder: Path) -> None:
        settings = Settings(artifact=artifact_folder)
        artifact = open_artifact(settings)
        self._tokenizer = TextTokenizer(
            artifact.path(TOKENIZER), artifact.manifest.sentence, token_limits(settings, artifact)
        )
        self._manifest = artifact.manifest
        self._engine = OnnxEngine(artifact, "cpu")
        self._limits = BatchLimits(self._engine.batch_tokens, settings.max_queue_tokens)

    def __call__(self, texts: list[str]) -> float:
        """Seconds for all texts, in requests of 100."""

        async def run() -> float:
            backends = EnginePool(self._engine, {}, self._limits, Metrics())
            bounds = Bounds(len(texts), 2**30, 2**30)
            predictor = Predictor(self._manifest, self._tokenizer, backends, bounds)
            parts = [texts[i : i + 100] for i in range(0, len(texts), 100)]
            started = time.perf_counter()
            await asyncio.gather(
                *(
                    predictor.encode(
                        EncodeRequest(inputs=[*part], outputs=["pooled"], truncate=True),
                        binary=True,
                        finish_by=math.inf,
                    )
                    for part in parts
                )
            )
            return time.perf_counter() - started

        return asyncio.run(run())


class SentenceTransformersInProcess:
    """sentence-transformers at its defaults: float32, batches of 32, texts sorted by length."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = SentenceTransformer(str(checkpoint), device="cpu")

    def __call__(self, texts: list[str]) -> float:
        """Seconds for all texts."""
        started = time.perf_counter()
        self._model.encode(texts, show_progress_bar=False)
        return time.perf_counter() - started

    def vectors(self, texts: list[str]) -> np.ndarray:
        """[text, feature], what every other way has to agree with."""
        return self._model.encode(texts, show_progress_bar=False)

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each text as it is computed, cut to the model's limit."""
        limit = self._model.max_seq_length
        encoded = self._model.tokenizer(texts, truncation=True, max_length=limit)
        return [len(ids) for ids in encoded["input_ids"]]
