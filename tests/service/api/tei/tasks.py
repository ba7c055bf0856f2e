"""Artifact with a task head in its manifest, and an engine with made-up scores."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.numerics.task_head import TaskConfig
from service.engines.contract import Floats, TextTask
from service.engines.fake import FakeEngine
from tests.service.harness import Client, serving

LABELS = TaskConfig(
    kind="sequence_classification", outputs=3, labels=("bad", "so-so", "good"), pooling="cls"
)
RANKS = TaskConfig(kind="sequence_classification", outputs=1, labels=("LABEL_0",), pooling="cls")
TOKENS = TaskConfig(
    kind="token_classification", outputs=3, labels=("O", "B-X", "I-X"), pooling="none"
)
SPARSE = TaskConfig(kind="sparse", outputs=30, pooling="max")


class ScoringEngine(FakeEngine):
    """Fake engine with scores of −2 to 1 from a text's ids; a third are 0 in sparse vectors."""

    scored = 0
    """Number of scored texts."""

    def expected(self, task: Any) -> Any:
        output = super().expected(task)
        if output.scores is not None:
            self.scored += 1
            scores = output.scores * np.float32(3) - np.float32(2)
            output.scores = np.maximum(scores, 0) if len(scores) == SPARSE.outputs else scores
        return output


@contextlib.asynccontextmanager
async def serving_task(
    artifact: Artifact, task: TaskConfig | None, **settings: Any
) -> AsyncIterator[Client]:
    """Yield a client of an application whose model has a task head."""
    manifest = artifact.manifest.model_copy(update={"task": task})
    engine = ScoringEngine(manifest.config)
    served = Artifact(artifact.folder, manifest, artifact.sha256)
    async with serving(served, engine, **settings) as client:
        yield client


def scores_of(artifact: Artifact, task: TaskConfig, inputs: Sequence[Any]) -> list[Floats]:
    """Return the engine's scores of each text or pair."""
    engine = ScoringEngine(artifact.manifest.config)
    tokenizer = Tokenizer.from_file(str(artifact.path(TOKENIZER)))
    found = []
    for each in inputs:
        encoding = tokenizer.encode(*([each] if isinstance(each, str) else each))
        ids, segments = np.array(encoding.ids), np.array(encoding.type_ids)
        found.append(engine.expected(TextTask(ids, segments, scores=task.shape(len(ids)))).scores)
    return found
