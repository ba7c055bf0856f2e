"""Service over an engine with a known speed and known faults: `python -m trials.stub < stub.json`.

The application and the server are the shipped ones; only the engine is not. `GET /trial` returns
the engine's counters.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from unittest import mock

import numpy as np
from pydantic import BaseModel

from model.artifact.manifest import Artifact
from model.config.encoder import EncoderConfig
from service.api.native import encode
from service.app import create_app
from service.artifacts.opening import open_artifact
from service.engines.contract import Engine, Output, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine
from service.process.listener import bound
from service.process.server import Server, end
from service.settings import Settings
from trials.oracle import sized

Fault = Literal["raise", "count", "shape", "nan", "infinity", "hang"]


class TrialEngine(FakeEngine):
    """Fake engine with the faults that its options name, and with counters."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        batch_seconds: float = 0.0,
        token_seconds: float = 0.0,
        raise_every: int = 0,
        most_texts: int = 0,
        faults: Mapping[int, Fault] | None = None,
    ) -> None:
        """Compute in one thread.

        Args:
            config: configuration of the encoder that the engine stands for.
            batch_seconds: seconds of a batch.
            token_seconds: seconds that each token adds to its batch.
            raise_every: number of batches of which the last raises; 0: none raises.
            most_texts: number of texts above which a batch raises MemoryError; 0: unlimited.
            faults: fault of a batch that has a text with a token id, by token id.

        """
        super().__init__(config, batch_seconds=batch_seconds, token_seconds=token_seconds)
        self.counts: Counter[str] = Counter({"batches": 0, "texts": 0, "raised": 0})
        self._raise_every = raise_every
        self._most_texts = most_texts
        self._faults = {int(token): fault for token, fault in (faults or {}).items()}
        self._never = threading.Event()

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute as the fake engine does, unless a fault is due."""
        self.counts["batches"] += 1
        if self._raise_every and self.counts["batches"] % self._raise_every == 0:
            self.counts["raised"] += 1
            raise RuntimeError("this batch was to fail")
        if self._most_texts and len(tasks) > self._most_texts:
            self.counts["raised"] += 1
            raise MemoryError
        outputs = super().run(tasks)
        self.counts["texts"] += len(tasks)
        for task, output in zip(tasks, list(outputs), strict=True):
            ids = task.input_ids.tolist() if isinstance(task, TextTask) else ()
            if fault := next((self._faults[i] for i in ids if i in self._faults), None):
                self._inject(fault, output, outputs)
        return outputs

    def _inject(self, fault: Fault, output: Output, outputs: list[Output]) -> None:
        self.counts["raised"] += 1
        assert output.pooled is not None
        match fault:
            case "raise":
                raise RuntimeError("this text breaks its batch")
            case "hang":
                self._never.wait()
            case "count":
                outputs.pop()
            case "shape":
                output.pooled = output.pooled[:-1]
            case "nan":
                output.pooled[0] = np.nan
            case "infinity":
                output.pooled[-1] = np.inf


class DriftingEngine(OnnxEngine):
    """ONNX Runtime on a processor that computes wrong vectors of texts with a certain token."""

    wrong_token = 0

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        """Compute, and add up to 0.1 to the pooled vectors of texts with the wrong token."""
        outputs = super().run(tasks)
        for task, output in zip(tasks, outputs, strict=True):
            wrong = isinstance(task, TextTask) and self.wrong_token in task.input_ids
            if wrong and output.pooled is not None:
                drift = np.linspace(0, 0.1, len(output.pooled), dtype=np.float32)
                output.pooled = output.pooled + drift
        return outputs


class Stub(BaseModel):
    """Engine, settings and models to serve."""

    engine: dict[str, Any] = {}
    """Options of `TrialEngine`; or only `wrong_token`, for `DriftingEngine`."""
    settings: dict[str, Any] = {}
    models: dict[str, int] = {}
    """Hidden sizes of several models by name; if empty, only the settings' own model is served."""
    bytes_per_float: int | None = None
    """Bytes that /encode predicts for a number in JSON, in place of the service's own."""


def _engine(artifact: Artifact, wrong_token: int | None = None, **options: Any) -> Engine:
    if wrong_token is None:
        return TrialEngine(artifact.manifest.config, **options)
    engine = DriftingEngine(artifact)
    engine.wrong_token = wrong_token
    return engine


def main() -> int:
    stub = Stub.model_validate_json(sys.stdin.read())
    if stub.bytes_per_float:
        mock.patch.object(encode, "JSON_BYTES_PER_FLOAT", stub.bytes_per_float).start()
    settings = Settings(log_level="error", **stub.settings)
    artifact = open_artifact(settings)
    artifacts = [sized(artifact, name, size) for name, size in stub.models.items()] or [artifact]
    engines = [_engine(one, **stub.engine) for one in artifacts]
    app = create_app(settings, artifacts, engines)

    def counts() -> dict[str, int]:
        """Return the sum of all engines' counters, zeros included."""
        done = Counter[str]()
        for one in engines:
            if isinstance(one, TrialEngine):
                done.update(one.counts)
        return done

    app.add_api_route("/trial", counts)
    with bound(settings.host, settings.port) as sockets:
        server = Server(app, settings)
        server.run(sockets)
    return end(server)


if __name__ == "__main__":
    sys.exit(main())
