"""Several models for the service's tests: one artifact under other names, with other sizes."""

from __future__ import annotations

import dataclasses
from typing import Any

from model.artifact.manifest import Artifact
from model.numerics.task_head import TaskConfig
from service.engines.fake import FakeEngine


def variant(
    artifact: Artifact, name: str, hidden_size: int, task: TaskConfig | None = None, **changed: Any
) -> Artifact:
    """Return the artifact as another model's, for engines without graphs."""
    manifest = artifact.manifest
    config = manifest.config.model_copy(update={"hidden_size": hidden_size})
    update = {"model": name, "config": config, "task": task, **changed}
    return dataclasses.replace(artifact, manifest=manifest.model_copy(update=update))


def fake_of(artifact: Artifact) -> FakeEngine:
    """Return a fake engine with vectors of the model's size."""
    return FakeEngine(artifact.manifest.config)
