"""Lines that an operator reads as a service starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.models.banner import address_line, banner
from service.models.build import build_state
from service.settings import Settings
from service.system.distribution import version
from tests.service.pictures import pictures_of


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "no request needs a key"),
        ({"api_keys": "s3cret"}, "every request needs a key"),
        ({"keys_file": Path("keys")}, "every request needs a key"),
    ],
)
def test_version_models_and_keys(asked: dict[str, Any], says: str, artifact: Artifact) -> None:
    settings = Settings(**asked)
    state = build_state(settings, [artifact], [FakeEngine(artifact.manifest.config)], None)
    first, model, keys = banner(settings, state.models)
    assert first == f"Headscope {version()}"
    name = next(iter(state.models)).name
    assert model == f"{name}: fp32 by fake (none), at most 512 tokens a text"
    assert keys == says


def test_a_model_with_two_towers_has_two_lines(artifact: Artifact) -> None:
    both = dataclasses.replace(artifact, vision=pictures_of(artifact))
    settings = Settings(engine="fake")
    state = build_state(settings, [both])
    name = next(iter(state.models)).name
    assert [*banner(settings, state.models)][1:3] == [
        f"{name}: fp32 by fake (none), at most 512 tokens a text",
        f"{name}:vision: fp32 by fake (none), pictures at 12 × 8 pixels, 7 tokens",
    ]


def test_addresses() -> None:
    settings = Settings(port=8000, metrics_port=9000)
    assert address_line(settings, "127.0.0.1", 8000) == (
        "serving http://127.0.0.1:8000, the dashboard: http://127.0.0.1:8000/"
    )
    assert address_line(settings, "::1", 9000) == (
        "metrics and health, without a key: http://[::1]:9000/metrics"
    )
