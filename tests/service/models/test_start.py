"""Parts of each model, as an application starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model.artifact.manifest import Artifact
from service.app import create_app
from service.models.state import state_of
from service.settings import Settings

FAKE = Settings(engine="fake")


def test_each_has_its_own_engine_queue_and_tokenizer(
    artifact: Artifact, exported: Callable[..., Artifact], tiny_checkpoint: Path
) -> None:
    other = exported(tiny_checkpoint, "tiny")
    one, two = state_of(create_app(FAKE, [artifact, other])).models
    assert one.inference.engines.default.engine.hidden_size == 128
    assert (
        two.inference.engines.default.engine.hidden_size == other.manifest.config.hidden_size != 128
    )
    assert one.inference.engines is not two.inference.engines
    assert one.inference.limits.max_tokens == artifact.manifest.sentence.max_length
    assert two.inference.limits.max_tokens == other.manifest.sentence.max_length
