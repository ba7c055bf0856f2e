"""Parts of each model, as an application starts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.models.served import ServedModel
from service.models.state import state_of
from service.settings import Settings
from tests.service.pictures import pictures_of

pytestmark = pytest.mark.anyio
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


async def test_towers_start_run_and_end_together(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text tower that cannot start leaves no vision tower behind."""
    both = dataclasses.replace(artifact, vision=pictures_of(artifact))
    app = create_app(FAKE, [both])
    async with app.router.lifespan_context(app):
        (model,) = state_of(app).models
        assert [tower.inference.tower for tower in model.towers] == ["text", "vision"]
        assert [*state_of(app).models.readiness()] == [model.name, f"{model.name}:vision"]
    closed: list[str] = []
    monkeypatch.setattr(ServedModel, "close", lambda model: closed.append(model.name))
    monkeypatch.setattr("service.models.start.TextTokenizer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        create_app(FAKE, [both])
    assert closed == [f"{model.name}:vision"]


def test_a_limit_on_texts_is_none_on_pictures(artifact: Artifact) -> None:
    """Pictures have a fixed number of tokens, so that `--max-length` cannot exceed it."""
    settings = Settings(engine="fake", max_length=99)
    (model,) = state_of(create_app(settings, [pictures_of(artifact)])).models
    assert model.inference.limits.max_tokens == 7
