"""Files of a decoder: shared tensors, errors, and reproducible bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from model.artifact.manifest import (
    DECODER_DATA,
    DECODER_FILES,
    DECODER_GRAPH,
    ENCODER_GRAPH,
    LOGPROBS_GRAPH,
    WEIGHTS,
    Artifact,
    load_artifact,
)
from model.config.precision import Precision
from model.errors import ArtifactError, ConfigError
from model.export.exporter import export
from model.export.shared_tensors import places_of


def test_the_word_embedding_is_there_once(translator: tuple[Path, Artifact]) -> None:
    """Encoder, decoder and output map share it: the last two refer to the encoder's."""
    _, artifact = translator
    (encoder,) = (
        place
        for place in places_of([artifact.path(ENCODER_GRAPH)]).values()
        if place.length == 60 * 24 * 4
    )
    assert encoder.location == WEIGHTS
    for name in (DECODER_GRAPH, LOGPROBS_GRAPH):
        model = onnx.load(artifact.path(name), load_external_data=False)
        tables = [each for each in model.graph.initializer if list(each.dims) == [60, 24]]
        assert len(tables) == 1
        assert encoder in places_of([artifact.path(name)]).values()
    data = artifact.path(DECODER_DATA).stat().st_size
    named = places_of([artifact.path(DECODER_GRAPH)]).values()
    assert data == sum(place.length for place in named if place.location == DECODER_DATA)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_are_refused(
    encoder_decoders: Callable[[str], Path],
    tmp_path: Path,
    precision: Precision,
) -> None:
    reason = f"an encoder–decoder is exported in fp32 or fp16, not {precision}"
    with pytest.raises(ConfigError, match=reason):
        export(encoder_decoders("bart"), tmp_path / "out", "bart", precision)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def copy(bart_artifact: Artifact, tmp_path: Path) -> Path:
    for path in bart_artifact.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", DECODER_FILES)
def test_a_missing_or_damaged_file_is_refused_in_a_line(copy: Path, name: str) -> None:
    before = (copy / name).read_bytes()
    content = bytearray(before or b"?")
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ArtifactError) as damaged:
        load_artifact(copy)
    assert f"{name} {'is damaged' if before else 'has 1 bytes'}" in str(damaged.value)
    (copy / name).unlink()
    with pytest.raises(ArtifactError) as missing:
        load_artifact(copy)
    assert f"{name} is missing" in str(missing.value)
    assert "\n" not in str(damaged.value) + str(missing.value)
