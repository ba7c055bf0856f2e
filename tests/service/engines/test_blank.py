"""Texts and pictures without content."""

from __future__ import annotations

from model.artifact.manifest import Artifact
from service.engines.contract import Pooling
from service.engines.measuring import blank_text
from tests.service.pictures import pictures_of


def test_only_a_picture_has_pixels(artifact: Artifact) -> None:
    pooling = Pooling(0, "cls")
    text = blank_text(artifact.manifest.config, 3, pooling)
    assert (text.tokens, text.pixels, text.pooling) == (3, None, pooling)
    picture = blank_text(pictures_of(artifact).manifest.config, 3, pooling)
    assert picture.pixels is not None
    assert picture.pixels.shape == (3, 48)
