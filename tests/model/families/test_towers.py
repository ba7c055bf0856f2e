from __future__ import annotations

from typing import Any

import pytest

from model.errors import ConfigError
from model.families.towers import towers

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
