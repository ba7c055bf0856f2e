"""Runs over files in this process, by default on an engine that answers from a hash."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from model.artifact.manifest import Artifact
from service.engines.contract import Engine, Output, Task
from service.engines.fake import FakeEngine
from service.errors import EngineFailed
from service.files.options import Encoding, FileOptions
from service.files.run import run
from service.settings import Settings
from testing.pictures import animated
from tests.service.pictures import picture, pictures_of

TEXTS = [f"{number} is the number of people in house {number % 7}" for number in range(300)]
"""Texts that fill several windows at 16 tokens a batch."""


class FewBatches(FakeEngine):
    """Engine that fails after some batches."""

    def __init__(self, artifact: Artifact, batches: int = 10**9) -> None:
        super().__init__(artifact.manifest.config)
        self.left, self.texts = batches, 0

    def run(self, tasks: Sequence[Task]) -> list[Output]:
        if not self.left:
            raise EngineFailed("the plug was pulled")
        self.left -= 1
        self.texts += len(tasks)
        return super().run(tasks)


Encode = Callable[..., int]


@pytest.fixture
def encode(artifact: Artifact) -> Encode:
    """Return `encode(inputs, out, engine=…, **options)`, which returns the exit code of a run."""

    def call(inputs: Any, out: Path, engine: Engine | None = None, **options: Any) -> int:
        names = [inputs] if isinstance(inputs, str | Path) else inputs
        own = {name: options.pop(name) for name in [*options] if hasattr(Encoding, name)}
        chosen = FileOptions(tuple(map(str, names)), out, encoding=Encoding(**own), **options)
        settings = Settings(artifact=artifact.folder, device="cpu", max_batch_tokens=16)
        return run(chosen, settings, lambda _: None, engine or FewBatches(artifact))

    return call


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Write `TEXTS` as JSON lines, each with its number and a list."""
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": i, "text": text, "tags": [i]}) for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write a folder of twelve pictures, a damaged one, an animated one, and other files."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number in range(12):
        file = folder / ("more" if number % 2 else "") / f"{number:02}.PNG"
        file.write_bytes(picture(number, width=30 + number))
    (folder / "damaged.jpg").write_bytes(picture(kind="JPEG")[:300])
    (folder / "moving.gif").write_bytes(animated("GIF"))
    (folder / ".hidden.png").write_bytes(picture())
    (folder / "notes.txt").write_text("no picture")
    return folder


@pytest.fixture
def encode_pictures(encode: Encode, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> Encode:
    """Return `encode` with a model of pictures."""
    own = pictures_of(artifact)
    monkeypatch.setattr("service.files.run.open_artifact", lambda *_: own)
    return functools.partial(encode, engine=FewBatches(own))
