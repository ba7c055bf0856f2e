"""Starts of each model's parts: failures, measured batches, and lines for an operator."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import MANIFEST, Artifact
from model.config.encoder import EncoderConfig
from service.app import create_app
from service.artifacts.footprint import footprint
from service.artifacts.repository import Target
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineUnavailable
from service.models.served import ServedModel
from service.models.state import build_state, state_of
from service.models.table import banner
from service.process.listener import address_line
from service.settings import Settings
from service.system.distribution import version
from tests.service.harness import GatedEngine, assert_problem
from tests.service.pictures import pictures_of
from tests.service.repositories import add, control_of, encode, load, serving_repository
from tests.service.scraped import samples
from tests.service.several import variant

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
        assert [*state_of(app).models.health()] == [model.name, f"{model.name}:vision"]
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


def test_the_first_request_is_forecast_by_what_was_measured_at_start(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts and of maps, by whichever engine."""

    def slow(config: EncoderConfig) -> FakeEngine:
        return FakeEngine(config, token_seconds=0.0001)

    monkeypatch.setattr("service.models.start.FakeEngine", slow)
    (model,) = state_of(create_app(FAKE, [artifact])).models
    scheduler = model.inference.engines.default
    assert scheduler.seconds_alone(512) > 0.05
    assert [tokens for tokens, _ in scheduler.engine.measured_maps] == [16, 128, 512]
    assert scheduler.lanes["attention"].map_pace.predict(512) > 0.05
    assert scheduler.engine.cost.token == pytest.approx(0.0001, rel=0.5)


def test_batches_are_measured_while_the_process_is_idle(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Recorded(FakeEngine):
        def run(self, tasks: Sequence[Task]) -> list[Output]:
            events.append("batch")
            return super().run(tasks)

    monkeypatch.setattr("service.models.start.FakeEngine", Recorded)
    state = build_state(FAKE, [artifact], idle=lambda: events.append("idle"))
    assert (events[0], events.count("idle"), events[-1]) == ("idle", 1, "batch")
    state.models.default.inference.close()


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


async def test_what_does_not_fit_names_other_models_to_admins_alone(
    tmp_path: Path, tiny_artifact: Artifact
) -> None:
    add(tmp_path, "secret", tiny_artifact)
    add(tmp_path, "wanted", tiny_artifact)
    budget = footprint(tiny_artifact, Settings(engine="fake")).total * 3 // 2
    async with serving_repository(tmp_path, memory_budget=budget, pinned=("secret",)) as client:
        reply = await encode(client, "wanted")
        problem = assert_problem(reply, 507, "the model needs about", error_type="Backend")
        assert f"of the {round(budget / 2**20)} MiB for all models" in problem["detail"]
        assert "secret" not in reply.text
        manifest = tmp_path / "wanted" / MANIFEST
        whole = manifest.read_bytes()
        manifest.write_text("{}", encoding="utf-8")
        again = assert_problem(await encode(client, "wanted"), 507, error_type="Backend")
        assert again["detail"] == problem["detail"], "the changed file is not opened so soon"
        manifest.write_bytes(whole)
        assert_problem(await load(client, "wanted"), 507, "secret@1", error_type="Backend")
        found = await samples(client)
        assert found["headscope_model_load_failures_total", (("reason", "memory"),)] == 2
        assert found["headscope_model_load_failures_total", (("reason", "invalid"),)] == 0
        assert found["headscope_models_bytes_limit", ()] == budget
        assert budget / 3 < found["headscope_models_bytes", ()] < budget
        assert "secret@1" in control_of(client).failure(Target("wanted", "1"))


def test_one_that_cannot_start_ends_those_that_have(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = GatedEngine()
    engine.let_through()
    engines = iter([engine])

    def start(*_: object) -> GatedEngine:
        if found := next(engines, None):
            return found
        raise EngineUnavailable("no such device")

    monkeypatch.setattr("service.models.start.OnnxEngine", start)
    with pytest.raises(EngineUnavailable, match="no such device"):
        create_app(Settings(), [variant(artifact, name, 8) for name in "ab"])
    assert engine.closed


def test_two_of_one_name_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="is to be served 2 times"):
        create_app(FAKE, [artifact, artifact])


@pytest.mark.parametrize(
    ("files", "settings", "says"),
    [
        ([], {}, "holds no model"),
        (["a/manifest.json"], {"pinned": ("b",)}, "--pinned b: the repository has no such model"),
        (["a/manifest.json"], {"pinned": ("a@2",)}, "a has no such version"),
        (None, {}, "is not a folder"),
    ],
)
def test_a_repository_that_cannot_be_served(
    tmp_path: Path, files: list[str] | None, settings: dict[str, Any], says: str
) -> None:
    root = tmp_path / "models"
    for name in files or []:
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
    if files is not None:
        root.mkdir(exist_ok=True)
    with pytest.raises(ValueError, match=re.escape(says)):
        create_app(Settings(engine="fake", models=root, **settings), [])


def test_pinned_models_need_a_repository() -> None:
    with pytest.raises(ValueError, match="give its folder by --models"):
        create_app(Settings(engine="fake", pinned=("a",)), [])
