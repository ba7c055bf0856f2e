from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from model.artifact.sentence import SentenceConfig
from model.checkpoint import load_checkpoint
from model.errors import ConfigError
from model.families.registry import read_config
from model.sources.towers import split, towers
from tests.model.checkpoints import edit_json
from tests.model.sentences import write_modules
from tests.model.tower_checkpoints import clip, save_towers, siglip

TEXT, VISION = {"hidden_size": 8}, {"hidden_size": 6}


def config(**changes: Any) -> dict[str, Any]:
    own = {"model_type": "clip", "text_config": TEXT, "vision_config": VISION}
    return own | {"projection_dim": 5} | changes


def test_each_tower_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    for model, size in ((clip(), 18), (siglip(), 16)):
        name = model.config.model_type
        (tmp_path / f"{name} links").mkdir()
        made = split(save_towers(model, tmp_path / name), tmp_path / f"{name} links")
        assert list(made) == ["text", "vision"]
        for tower, folder in made.items():
            own = read_config(folder)
            assert own.model_type == f"{name}_{tower}_model"
            sentence = SentenceConfig.from_checkpoint(
                folder, own.max_position_embeddings, own.hidden_size
            )
            assert sentence.vector_size(own.hidden_size) == size
            encoder = load_checkpoint(folder, own)
            first = encoder.layers[0].attention.query.weight
            theirs = getattr(model, f"{tower}_model").encoder.layers[0].self_attn.q_proj.weight
            torch.testing.assert_close(first, theirs, atol=0, rtol=0)


def test_modules_of_sentence_transformers_are_linked(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    save_towers(clip(), folder)
    write_modules(folder, "CLIPModel", "Normalize")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_CLIPModel"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "0_CLIPModel").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name != "modules.json":
            shutil.move(path, folder / "0_CLIPModel" / path.name)
    (tmp_path / "links").mkdir()
    for tower in split(folder, tmp_path / "links").values():
        own = read_config(tower / "0_CLIPModel")
        sentence = SentenceConfig.from_checkpoint(
            tower, own.max_position_embeddings, own.hidden_size
        )
        assert sentence.normalize
        assert len(sentence.modules) == (1 if own.pixel_features == 0 else 2)


def test_an_image_classifier_has_its_vision_tower_alone() -> None:
    labels = {"0": "cat", "1": "dog"}
    made = towers(config(architectures=["CLIPForImageClassification"], id2label=labels))
    assert list(made) == ["vision"]
    assert (made["vision"]["id2label"], made["vision"]["hidden_size"]) == (labels, 6)


def test_towers_of_old_configs_are_named_twice() -> None:
    made = towers(config(text_config_dict={"hidden_size": 9}, vision_config_dict=None))
    assert (made["text"]["hidden_size"], made["vision"]["hidden_size"]) == (9, 6)
    assert made["text"]["architectures"] == ["CLIPTextModelWithProjection"]


def test_other_models_have_no_towers(tmp_path: Path) -> None:
    edit_json(tmp_path / "config.json", model_type="bert")
    assert split(tmp_path, tmp_path / "links") == {}
    with pytest.raises(ConfigError, match="CLIPSegModel is not supported: CLIPModel and"):
        towers(config(architectures=["CLIPSegModel"]))
    with pytest.raises(ConfigError, match="vision_config is missing"):
        towers(config(vision_config=None))
