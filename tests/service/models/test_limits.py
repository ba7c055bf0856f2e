"""Limits of inputs, compared with the positions of each model."""

from __future__ import annotations

import pytest

from model.artifact.manifest import Artifact
from service.app import create_app
from service.models.limits import token_limits
from service.settings import Settings
from tests.service.harness import CONFIG
from tests.service.several import variant


def test_a_limit_is_held_against_each_models_positions(artifact: Artifact) -> None:
    table = artifact.manifest.config.max_position_embeddings
    assert token_limits(Settings(max_length=table), artifact).max_tokens == table
    positions = CONFIG.model_copy(update={"max_position_embeddings": 16})
    short = variant(artifact, "short", 8, config=positions)
    with pytest.raises(ValueError, match=r"--max-length 17 is more than .*'s 16 of short"):
        create_app(Settings(engine="fake", max_length=17), [artifact, short])
