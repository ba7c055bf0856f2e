"""Sizes of pictures, and configs of picture encoders that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.errors import ConfigError
from model.families.pictures import processed_size
from model.families.registry import parse_config, read_config
from tests.model.picture_checkpoints import PICTURES, PROCESSOR

FIELDS = PICTURES | {"model_type": "dinov2_with_registers"}


def grid_of(folder: Path) -> tuple[int, int]:
    patches = read_config(folder).embeddings.patches
    assert patches is not None
    assert patches.trained_grid == (3, 3)
    return patches.rows, patches.columns


def test_the_image_processor_decides_the_grid(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    assert processed_size(tmp_path) is None
    assert grid_of(tmp_path) == (3, 3)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    assert processed_size(tmp_path) == (28, 42)
    assert grid_of(tmp_path) == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": [14, 16]}, "patches of 14 × 16 pixels are not square"),
        ({"image_size": 13}, "smaller than a patch of 14 pixels"),
        ({"image_size": 14 * 100}, "has 10000 patches; at most 8192 are supported"),
        ({"num_channels": 1}, "num_channels: Input should be 3"),
        ({"image_size": [42]}, "image_size"),
        ({"attention_score": "cosine"}, "attention_score"),
    ],
    ids=str,
)
def test_a_config_that_is_not_supported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(FIELDS | changes)
