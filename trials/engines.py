"""Engines with a known speed, and with known faults."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from model.config.encoder import EncoderConfig
from service.engines.contract import Output, Task, TextTask
from service.engines.fake import FakeEngine
from service.engines.onnx import OnnxEngine

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
        self._faults = dict(faults or {})
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
            fault = self._fault(task)
            if fault == "count":
                outputs.pop()
            elif fault:
                self._inject(fault, output)
        return outputs

    def _fault(self, task: Task) -> Fault | None:
        ids = task.input_ids.tolist() if isinstance(task, TextTask) else ()
        return next((self._faults[i] for i in ids if i in self._faults), None)

    def _inject(self, fault: Fault, output: Output) -> None:
        self.counts["raised"] += 1
        assert output.pooled is not None
        match fault:
            case "raise":
                raise RuntimeError("this text breaks its batch")
            case "hang":
                self._never.wait()
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
                output.pooled = output.pooled + np.linspace(
                    0, 0.1, len(output.pooled), dtype=np.float32
                )
        return outputs
