"""Texts and pictures that are read for a window: their tokens, or the reason of a rejection."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from model.artifact.manifest import Artifact
from service.files.encoder import Refused
from service.files.options import Encoding
from service.files.readers import PictureFileReader, TextReader, reader_of
from service.inference.pictures.reader import PictureReader
from service.settings import Settings
from tests.service.pictures import pictures_of


def test_one_rejected_text_leaves_the_others(artifact: Artifact) -> None:
    reader = reader_of(artifact, Settings(), Encoding())
    assert isinstance(reader, TextReader)
    read = reader.read(["a cat", *["a dog"] * 70, "word " * 600])
    assert [isinstance(outcome, Refused) for outcome in read] == [False] * 71 + [True]
    assert reader.lacking(72) == 0


def test_pictures_are_decoded_side_by_side_and_in_order(
    artifact: Artifact, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, read = threading.Barrier(2, timeout=20), PictureReader.read

    def wait(self: PictureReader, *arguments: object) -> object:
        together.wait()
        return read(self, *arguments)

    monkeypatch.setattr(PictureReader, "read", wait)
    monkeypatch.setattr("service.files.readers.os.cpu_count", lambda: 2)
    reader = reader_of(pictures_of(artifact), Settings(), Encoding())
    assert isinstance(reader, PictureFileReader)
    paths = [photos / "02.PNG", photos / "damaged.jpg", photos / "00.PNG", photos / "04.PNG"]
    outcomes = reader.read([*map(str, paths)])
    reader.close()
    sizes = [o.picture.size if not isinstance(o, Refused) and o.picture else None for o in outcomes]
    assert sizes == [(32, 20), None, (30, 20), (34, 20)]
