"""Sizes of pictures, towers in configs, and configs of picture encoders that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.config.encoder import patches_of
from model.errors import ConfigError
from model.families.pictures import processed_size
from model.families.registry import parse_config, read_config
from model.families.towers import towers
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
    ("model_type", "names"),
    [
        ("vit", ("[CLS]",)),
        ("deit", ("[CLS]", "[DIST]")),
        ("dinov2_with_registers", ("[CLS]", "[REG 1]", "[REG 2]")),
        ("siglip_vision_model", ()),
    ],
)
def test_special_tokens_have_names(model_type: str, names: tuple[str, ...]) -> None:
    config = parse_config(FIELDS | {"model_type": model_type})
    assert patches_of(config).special_tokens == names


TEXT, VISION = {"hidden_size": 8}, {"hidden_size": 6}


def config(**changes: Any) -> dict[str, Any]:
    own = {"model_type": "clip", "text_config": TEXT, "vision_config": VISION}
    return own | {"projection_dim": 5} | changes


def test_an_image_classifier_has_its_vision_tower_alone() -> None:
    labels = {"0": "cat", "1": "dog"}
    made = towers(config(architectures=["CLIPForImageClassification"], id2label=labels))
    assert list(made) == ["vision"]
    assert (made["vision"]["id2label"], made["vision"]["hidden_size"]) == (labels, 6)


def test_towers_of_old_configs_are_named_twice() -> None:
    made = towers(config(text_config_dict={"hidden_size": 9}, vision_config_dict=None))
    assert (made["text"]["hidden_size"], made["vision"]["hidden_size"]) == (9, 6)
    assert made["text"]["architectures"] == ["CLIPTextModelWithProjection"]


def test_other_models_have_no_towers() -> None:
    assert towers({"model_type": "bert"}) == {}
    with pytest.raises(ConfigError, match="CLIPSegModel is not supported: CLIPModel and"):
        towers(config(architectures=["CLIPSegModel"]))
    with pytest.raises(ConfigError, match="vision_config is missing"):
        towers(config(vision_config=None))
