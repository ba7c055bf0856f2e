from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from model.artifact.sentence import SentenceConfig
from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.registry import read_config
from model.sources.towers import as_folders, split
from tests.model.checkpoints import edit_json
from tests.model.sentences import write_modules
from tests.model.tower_checkpoints import clip, save_towers, siglip


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


def test_other_models_have_no_towers(tmp_path: Path) -> None:
    edit_json(tmp_path / "config.json", model_type="bert")
    with as_folders(tmp_path) as parts:
        assert parts == {}


def test_errors_name_the_checkpoint(tmp_path: Path) -> None:
    folder = save_towers(clip(), tmp_path / "a")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught, as_folders(folder) as parts:
        load_checkpoint(parts["vision"])
    assert str(folder) in str(caught.value)
