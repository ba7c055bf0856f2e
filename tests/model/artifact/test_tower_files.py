from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.artifact.sentence import SentenceConfig
from model.artifact.tower_files import tower_vectors
from model.errors import ConfigError
from tests.model.checkpoints import edit_json
from tests.model.sentences import write_modules

CLIP = {"model_type": "clip_text_model", "hidden_size": 12, "projection_dim": 5}


def read(folder: Path, **config: Any) -> SentenceConfig:
    (folder / "config.json").write_text(json.dumps(CLIP | config))
    return SentenceConfig.from_checkpoint(folder, 20, 12)


def test_a_tower_without_a_projection_gives_the_state_of_its_end_token(tmp_path: Path) -> None:
    sentence = read(tmp_path, architectures=["CLIPTextModel"])
    assert (sentence.pooling, sentence.modules) == ("last", ())


def test_modules_of_sentence_transformers_follow_the_projection(tmp_path: Path) -> None:
    write_modules(tmp_path, "CLIPModel", "Dense", "Normalize")
    edit_json(tmp_path / "1_Dense" / "config.json", in_features=5, out_features=3)
    sentence = read(tmp_path, architectures=["CLIPTextModelWithProjection"])
    assert [module.kind for module in sentence.modules] == ["Dense", "Dense"]
    assert (sentence.vector_size(12), sentence.normalize) == (3, True)


def test_a_pooling_of_sentence_transformers_replaces_the_towers(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer", "Pooling")
    edit_json(tmp_path / "1_Pooling" / "config.json", pooling_mode="mean")
    assert read(tmp_path).pooling == "mean"


def test_other_modules_are_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, "CLIPModel", "LSTM")
    with pytest.raises(ConfigError, match="CLIPModel → LSTM are not supported for CLIP and SigLIP"):
        read(tmp_path)
    write_modules(tmp_path, "Transformer")
    edit_json(tmp_path / "sentence_bert_config.json", module_output_name="token_embeddings")
    with pytest.raises(ConfigError, match="'token_embeddings' is not supported"):
        read(tmp_path)


def test_arguments_of_the_processor_limit_texts(tmp_path: Path) -> None:
    write_modules(tmp_path, "Transformer")
    path = tmp_path / "sentence_bert_config.json"
    own = {"module_output_name": "sentence_embedding"}
    edit_json(path, **own, processing_kwargs={"text": {"padding": "max_length", "max_length": 7}})
    assert read(tmp_path).max_length == 7
    edit_json(path, processing_kwargs={"image": {"do_resize": False}})
    with pytest.raises(ConfigError, match=r"processing_kwargs\.image is not supported"):
        read(tmp_path)
    edit_json(path, processing_kwargs={"text": {"stride": 3}})
    with pytest.raises(ConfigError, match=r"processing_kwargs\.text\.stride is not supported"):
        read(tmp_path)


def test_other_encoders_are_no_towers(tmp_path: Path) -> None:
    assert tower_vectors(tmp_path, {"model_type": "bert"}) is None
