"""Inputs of an export: batches of texts, and of pictures with their pixels."""

from __future__ import annotations

import numpy as np

from model.artifact.manifest import Artifact
from model.config.encoder import patches_of
from model.export.samples import PictureSamples, TextSamples, pack_samples, samples_of


def test_the_inputs_are_of_the_encoders_kind(
    tiny_artifact: Artifact, picture_artifact: Artifact
) -> None:
    assert isinstance(samples_of(tiny_artifact), TextSamples)
    assert isinstance(samples_of(picture_artifact), PictureSamples)


def test_pictures_are_packed_with_their_pixels(picture_artifact: Artifact) -> None:
    samples = samples_of(picture_artifact)
    for kind, count in ((samples.calibration(), 32), (samples.similarity(), 48)):
        batches = list(kind)
        assert sum(len(batch.padded_index) for batch in batches) == count
        for batch in batches:
            assert batch.pixels is not None
            assert batch.pixels.shape == (len(batch.input_ids), 588)
    generator = np.random.default_rng(0)
    parts = [samples.random(5, generator), samples.random(2, generator)]
    batch = pack_samples(parts)
    assert batch.input_ids.tolist() == [1, 2, 3, 0, 0, 1, 2]
    assert batch.pixels is not None
    assert batch.pixels[3:5].std() > 0.9
    assert not batch.pixels[5:].any()


def test_unusual_pictures_fit_into_memory_together(picture_artifact: Artifact) -> None:
    config = picture_artifact.manifest.config
    patches = patches_of(config).model_copy(update={"rows": 30, "columns": 40})
    embeddings = config.embeddings.model_copy(update={"patches": patches})
    large = config.model_copy(update={"embeddings": embeddings})
    assert picture_artifact.manifest.images is not None
    samples = PictureSamples(large, picture_artifact.manifest.images)
    assert {len(sample.input_ids) for sample in samples.unusual(682)} == {256}
    assert {len(sample.input_ids) for sample in samples.unusual(40)} == {40}
