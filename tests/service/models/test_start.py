"""Parts of each model, as an application starts them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from model.config.encoder import EncoderConfig
from service.app import create_app
from service.engines.contract import Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineUnavailable
from service.models.start import build_state, token_limits
from service.models.state import state_of
from service.settings import Settings
from tests.service.harness import CONFIG, GatedEngine
from tests.service.several import variant

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
    assert one.inference.tokenizer.limits.max_tokens == artifact.manifest.sentence.max_length
    assert two.inference.tokenizer.limits.max_tokens == other.manifest.sentence.max_length


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


def test_the_first_request_is_forecast_by_what_was_measured_at_start(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of texts and of maps, by whichever engine."""

    def slow(config: EncoderConfig) -> FakeEngine:
        return FakeEngine(config, token_seconds=0.0001)

    monkeypatch.setattr("service.models.start.FakeEngine", slow)
    (model,) = state_of(create_app(FAKE, [artifact])).models
    scheduler = model.inference.engines.default
    assert scheduler.seconds_alone("attention", 512) > 0.05
    assert [tokens for tokens, _ in scheduler.engine.measured_maps] == [16, 128, 512]
    assert scheduler.lanes["attention"].map_pace.predict(512, 512) > 0.05
    for lane in scheduler.lanes.values():
        assert lane.cost == scheduler.engine.cost
        assert lane.cost.token == pytest.approx(0.0001, rel=0.5)


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


def test_two_of_one_name_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="is to be served 2 times"):
        create_app(FAKE, [artifact, artifact])


def test_a_limit_is_held_against_each_models_positions(artifact: Artifact) -> None:
    table = artifact.manifest.config.max_position_embeddings
    assert token_limits(Settings(max_length=table), artifact).max_tokens == table
    positions = CONFIG.model_copy(update={"max_position_embeddings": 16})
    short = variant(artifact, "short", 8, config=positions)
    with pytest.raises(ValueError, match=r"--max-length 17 is more than .*'s 16 of short"):
        create_app(Settings(engine="fake", max_length=17), [artifact, short])


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
