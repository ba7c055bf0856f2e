"""The service in this process, without HTTP, and the default model that it serves."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import numpy as np

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.vectors import TextVectors
from service.artifacts.opening import find_checkpoint, open_artifact
from service.engines.contract import Floats
from service.engines.measuring import measured_batches, measured_cost, texts_of
from service.engines.onnx import OnnxEngine
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions
from service.inference.engine_pool import EnginePool
from service.inference.tokenization.request_tokenizer import RequestTokenizer
from service.inference.tokenization.tokenizer import Options, TextTokenizer
from service.models.start import input_limits
from service.scheduler.call import ANYBODY
from service.scheduler.lanes import BatchLimits
from service.settings import Settings
from service.telemetry.metrics import Metrics


def default_artifact() -> Artifact:
    """Return the default model's artifact in the service's precision; export it if missing."""
    return open_artifact(Settings())


def default_checkpoint() -> Path:
    """Return the default model's checkpoint."""
    return find_checkpoint(Settings(), print)


METRICS = Metrics()


class InProcess:
    """Path of a request through the service, without HTTP."""

    def __init__(self, artifact_folder: Path) -> None:
        settings = Settings(artifact=artifact_folder)
        artifact = open_artifact(settings)
        self._tokenizer = TextTokenizer(
            artifact.path(TOKENIZER), artifact.manifest.sentence, input_limits(settings, artifact)
        )
        self._artifact, self._vectors = artifact, TextVectors.of(artifact)
        self._engine = engine = OnnxEngine(artifact, "cpu")
        self._limits = BatchLimits(engine.batch_tokens, settings.max_queue_tokens)
        tasks, longest = texts_of(artifact.manifest.config), self._tokenizer.limits.max_tokens
        engine.measured = measured_batches(engine, tasks, engine.batch_tokens, longest)
        engine.cost = measured_cost(engine, tasks, engine.measured, longest)

    def __call__(self, texts: list[str]) -> float:
        """Return the seconds for all texts, in requests of 100."""
        return self._encode(texts)[0]

    def vectors(self, texts: list[str]) -> np.ndarray:
        """Return the vectors `[text, feature]`."""
        return np.array(self._encode(texts)[1])

    def _encode(self, texts: list[str]) -> tuple[float, list[Floats]]:
        """Return the seconds for all texts, and their vectors."""

        async def run() -> tuple[float, list[Floats]]:
            engines = EnginePool(self._engine, {}, self._limits, METRICS.of_model("benchmark"))
            reader = RequestTokenizer(self._tokenizer)
            inference = Inference(self._artifact, self._vectors, reader, engines)
            plan = inference.plan(EncodeOptions(("pooled",)))

            async def encode(part: list[str]) -> list[Floats]:
                prepared = await inference.prepare(part, Options(truncate=True), ANYBODY, "encode")
                encoded = await inference.encode(prepared, plan)
                return [own["pooled"] for own in encoded]

            parts = [texts[i : i + 100] for i in range(0, len(texts), 100)]
            started = time.perf_counter()
            vectors = await asyncio.gather(*(encode(part) for part in parts))
            return time.perf_counter() - started, list(itertools.chain(*vectors))

        return asyncio.run(run())
