"""Texts that verification computes with both engines."""

from __future__ import annotations

import dataclasses
import itertools

from model.artifact.manifest import Artifact
from model.config.decoder import DecoderConfig
from model.export.verify import grid, longest_text


def test_the_grid_covers_lengths_batch_sizes_and_segments(tiny_artifact: Artifact) -> None:
    batches = list(grid(tiny_artifact))
    lengths = [[len(ids) for ids, _, _ in batch] for batch in batches]
    assert {2, 3, 7, 16, 33, 40} <= {n for batch in lengths for n in batch}
    assert {1, 2, 5, 8} <= {len(batch) for batch in batches}
    assert max(n for batch in lengths for n in batch) == 40
    assert any(len(set(batch)) > 1 for batch in lengths)
    texts = [text for batch in batches for text in batch]
    assert {i for ids, _, _ in texts for i in ids} <= set(range(60))
    assert {segment for _, segments, _ in texts for segment in segments} == {0, 1}
    assert all(len(ids) == len(segments) for ids, segments, _ in texts)


def test_the_grid_stays_within_a_table_of_one_segment(tiny_artifact: Artifact) -> None:
    config = tiny_artifact.manifest.config.model_copy(update={"type_vocab_size": 1})
    manifest = tiny_artifact.manifest.model_copy(update={"config": config})
    texts = itertools.chain(*grid(dataclasses.replace(tiny_artifact, manifest=manifest)))
    assert {segment for _, segments, _ in texts for segment in segments} == {0}


def test_the_grid_is_the_same_every_time(tiny_artifact: Artifact) -> None:
    assert list(grid(tiny_artifact)) == list(grid(tiny_artifact))


def test_pictures_are_verified_whole_and_in_part(picture_artifact: Artifact) -> None:
    """The pictures have 9 tokens, of which 3 are special."""
    batches = list(grid(picture_artifact))
    lengths = [[len(picture.input_ids) for picture in batch] for batch in batches]
    assert {n for batch in lengths for n in batch} == {2, 3, 7, 9}
    assert any(len(set(batch)) > 1 for batch in lengths)
    for ids, segments, pixels in itertools.chain(*batches):
        assert list(ids) == [1, 2, 3, 0, 0, 0, 0, 0, 0][: len(ids)]
        assert set(segments) == {0}
        assert pixels is not None
        assert pixels.shape == (len(ids), 3 * 14 * 14)
        assert not pixels[:3].any()


def test_a_decoders_maps_leave_less_room(tiny_artifact: Artifact) -> None:
    """2²⁸ bytes of 4 · 6 heads' maps, and of 4 · 6 + 2 · 4 · 6 heads'."""
    config = tiny_artifact.manifest.config.model_copy(
        update={"max_position_embeddings": 10**5, "num_hidden_layers": 2, "num_attention_heads": 3}
    )
    assert longest_text(config) == 3344
    assert longest_text(config, DecoderConfig(layers=config, start_token_id=0)) == 1930
