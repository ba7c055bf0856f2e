"""A running service encodes pictures as an engine in this process does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from tests.service.files.conftest import Encode
from tests.service.harness import listening
from tests.service.pictures import pictures_of


def test_heads_of_a_vision_tower_are_its_own(
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text tower beside it has half as many heads."""
    vision = pictures_of(artifact)
    heads = vision.manifest.config.model_copy(update={"num_attention_heads": 4})
    vision = dataclasses.replace(
        vision, manifest=vision.manifest.model_copy(update={"config": heads})
    )
    both = dataclasses.replace(artifact, vision=vision)
    monkeypatch.setenv("HEADSCOPE_ENGINE", "fake")  # of the vision tower
    with listening(both, FakeEngine(artifact.manifest.config)) as (_, port):
        url, more = f"http://127.0.0.1:{port}", photos / "more"
        assert encode_pictures(more, tmp_path / "there.npy", url=url, kind="importance") == 0
    assert np.load(tmp_path / "there.npy").shape == (6, 2, 4)


@pytest.mark.parametrize("kind", ["pooled", "tokens", "stats"])
def test_arrays_are_those_of_an_engine_here(
    kind: str,
    encode_pictures: Encode,
    artifact: Artifact,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rejected pictures have the same reasons, wherever they are in their request."""
    own = pictures_of(artifact)
    options = {"kind": kind, "on_error": "skip"}
    assert encode_pictures(photos, tmp_path / "here.npz", **options) == 3
    here = capsys.readouterr().err
    with listening(own, FakeEngine(own.manifest.config), max_client_batch_size=5) as (_, port):
        url = f"http://127.0.0.1:{port}"
        assert encode_pictures(photos, tmp_path / "there.npz", url=url, **options) == 3
    there = capsys.readouterr().err
    assert "damaged.jpg: the JPEG file is truncated or damaged" in there
    assert sorted(here.splitlines()) == sorted(there.splitlines())
    found, expected = np.load(tmp_path / "there.npz"), np.load(tmp_path / "here.npz")
    assert found.files == expected.files
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
