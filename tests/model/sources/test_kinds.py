"""Kinds of models against transformers' classes; replaced pooling and size of pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS
from transformers import AutoConfig
from transformers.models.auto import modeling_auto as auto

from model.errors import ConfigError
from model.images.processing import ImageProcessing, read_processing
from model.sources.hub.repository import ORIGINAL, full_name
from model.sources.locate import DEFAULT_MODEL
from model.sources.overlay import (
    YES_NO,
    PoolingSetting,
    may_be_dense_or_sparse,
    may_be_reranker,
    with_image_size,
    with_pooling,
)
from model.sources.recognition import (
    AUDIO,
    DECODER,
    ENCODER_DECODER,
    KINDS,
    MULTIMODAL,
    VISION,
    kind_of,
)
from model.sources.sentence import read_sentence
from model.sources.task_files import LogitScore, read_logit_score, sparse_pooling, task_kind
from tests.model.picture_checkpoints import PROCESSOR
from tests.model.sentences import write_modules

THEIRS: dict[str, set[str]] = {
    ENCODER_DECODER: set(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    DECODER: set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
    VISION: {
        *auto.MODEL_FOR_IMAGE_MAPPING_NAMES,
        *auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
        "clip_vision_model",
    },
    AUDIO: {
        *auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        *auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
        *auto.MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES,
        *auto.MODEL_FOR_CTC_MAPPING_NAMES,
        "clap",
    },
    MULTIMODAL: {
        *auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_DOCUMENT_QUESTION_ANSWERING_MAPPING_NAMES,
        *auto.MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES,
        *("visual_bert", "layoutlm"),
    },
}


CONFIGS: dict[str | None, str] = {
    ENCODER_DECODER: "pegasus_x blenderbot led switch_transformers",
    MULTIMODAL: "siglip2 blip chinese_clip idefics3",
    VISION: "vit dinov2 deit",
    None: "bert roberta xlm-roberta mpnet deberta-v2 modernbert electra",
}
"""Kinds of models, and names of transformers' configs that show them."""


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_kind_is_known_by_its_config(kind: str | None) -> None:
    for name in CONFIGS[kind].split():
        config = AutoConfig.for_model(name).to_dict() | {"model_type": "new"}
        assert kind_of(config) == kind, name


@pytest.mark.parametrize("kind", THEIRS)
def test_names_are_of_models_of_their_kind(kind: str) -> None:
    assert {name for name, listed in KINDS.items() if listed == kind} <= THEIRS[kind]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "new", "architectures": ["NewForCausalLM"]}, DECODER),
        ({"model_type": "new", "architectures": ["NewLMHeadModel"]}, DECODER),
        ({"model_type": "new", "num_mel_bins": 80}, AUDIO),
        ({"architecture": "resnet50", "pretrained_cfg": {}}, VISION),
        ({"model_type": "new", "architectures": ["NewModel"]}, None),
        ({"model_type": "new", "architectures": []}, None),
        ({"model_type": "new", "architectures": "NewForCausalLM"}, None),
        ({"model_type": ["bert"], "is_encoder_decoder": False}, None),
        ({}, None),
    ],
)
def test_other_signs(config: dict[str, Any], kind: str | None) -> None:
    assert kind_of(config) == kind


EXPECTED = {"resize": (70, 43), "shortest_edge": None, "crop": None, "resample": 3}


def resized(folder: Path) -> ImageProcessing:
    return read_processing(with_image_size(folder, (70, 43), folder.parent / "sizes"))


@pytest.mark.parametrize("whole", [False, True])
def test_pictures_are_resized_without_a_crop(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    name, content = "preprocessor_config.json", PROCESSOR
    if whole:
        name = "processor_config.json"
        content = {"image_processor": PROCESSOR, "processor_class": "CLIPProcessor"}
    (folder / name).write_text(json.dumps(content))
    found = resized(folder)
    assert found == read_processing(folder).model_copy(update=EXPECTED)


def test_a_checkpoint_without_pictures(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no image processor: leave out --image-size"):
        with_image_size(tiny_checkpoint, (70, 43), tmp_path)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("all-MiniLM-L6-v2", DEFAULT_MODEL),
        ("all-MiniLM-L6-v2@v1", f"{DEFAULT_MODEL}@v1"),
        (DEFAULT_MODEL, DEFAULT_MODEL),
        ("bert-base-uncased", "bert-base-uncased"),
        ("BAAI/bge-small-en-v1.5@main", "BAAI/bge-small-en-v1.5@main"),
        ("./folder", "./folder"),
        ("~somebody", "~somebody"),
        ("", ""),
    ],
)
def test_a_name_without_an_organisation_gets_one(name: str, full: str) -> None:
    assert full_name(name) == full


def test_a_folder_of_the_name_stays_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert full_name("all-MiniLM-L6-v2") == "all-MiniLM-L6-v2"


def test_the_first_models_are_those_of_sentence_transformers() -> None:
    assert set(ORIGINAL_TRANSFORMER_MODELS) == ORIGINAL


def write(folder: Path, architecture: str, *modules: str) -> Path:
    """Write the descriptions of a checkpoint of 8 features, and of modules after its encoder."""
    folder.mkdir()
    config = {"model_type": "bert", "architectures": [architecture], "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps(config))
    if modules:
        pooling = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True}
        write_modules(folder, "Transformer", *modules, Pooling=pooling)
    return folder


@pytest.mark.parametrize(
    ("pooling", "mode"), [("cls", "cls"), ("mean", "mean"), ("last-token", "last")]
)
@pytest.mark.parametrize("modules", [(), ("Pooling", "Normalize")])
def test_a_dense_pooling_takes_the_place_of_the_checkpoints(
    tmp_path: Path, modules: tuple[str, ...], pooling: PoolingSetting, mode: str
) -> None:
    """Modules after pooling stay."""
    folder = write(tmp_path / "a", "BertModel", *modules)
    found = with_pooling(folder, pooling, tmp_path / "poolings")
    sentence = read_sentence(found, 512, 8)
    assert (sentence.pooling, sentence.normalize) == (mode, bool(modules))
    assert json.loads((found / "config.json").read_text())["hidden_size"] == 8


@pytest.mark.parametrize("modules", [(), ("Pooling",)])
def test_splade_is_the_maximum_of_log1p_relu(tmp_path: Path, modules: tuple[str, ...]) -> None:
    folder = write(tmp_path / "a", "BertForMaskedLM", *modules)
    assert task_kind(folder) is None
    found = with_pooling(folder, "splade", tmp_path / "poolings")
    assert task_kind(found) == "sparse"
    assert sparse_pooling(found) == {"pooling": "max", "activation": "relu"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", {"model": {"vocab": {"yes": 7, "no": 4}}}),
        ("vocab.json", {"yes": 7, "no": 4}),
    ],
)
def test_yes_no_compares_two_words(tmp_path: Path, name: str, content: Any) -> None:
    """Its chat template replaces that of the checkpoint, which is for conversations."""
    folder = write(tmp_path / "a", "Qwen3ForCausalLM")
    (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("of conversations")
    assert may_be_reranker(folder)
    found = with_pooling(folder, "yes-no", tmp_path / "poolings")
    assert not may_be_reranker(found)
    assert read_logit_score(found) == LogitScore(
        true_token_id=7, false_token_id=4, chat_template=YES_NO
    )
    (folder / name).write_text("{}")
    with pytest.raises(ConfigError, match="--pooling yes-no needs 'yes' in the vocabulary"):
        with_pooling(folder, "yes-no", tmp_path / "poolings")


def test_the_folder_is_made_once_for_each_pooling(tmp_path: Path) -> None:
    folder, poolings = write(tmp_path / "a", "BertForMaskedLM"), tmp_path / "poolings"
    first = with_pooling(folder, "splade", poolings)
    assert (
        with_pooling(folder, "splade", poolings) == first != with_pooling(folder, "cls", poolings)
    )
    assert len(list(poolings.iterdir())) == 2
    (folder / "vocab.txt").write_text("a")
    assert (with_pooling(folder, "splade", poolings) / "vocab.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("architecture", "modules", "pooling", "says"),
    [
        ("BertModel", (), "splade", "--pooling splade needs the logits of words"),
        ("Qwen3Model", (), "yes-no", "--pooling yes-no reads checkpoints of Qwen3-Reranker"),
        ("Qwen3ForCausalLM", ("Pooling",), "yes-no", "without modules.json"),
        ("BertModel", ("Normalize",), "cls", "--pooling cls has no Pooling to replace"),
    ],
)
def test_a_pooling_that_does_not_fit_is_refused(
    tmp_path: Path, architecture: str, modules: tuple[str, ...], pooling: Any, says: str
) -> None:
    folder = write(tmp_path / "a", architecture, *modules)
    with pytest.raises(ConfigError, match=says):
        with_pooling(folder, pooling, tmp_path / "poolings")


@pytest.mark.parametrize(
    ("architecture", "modules", "either"),
    [
        ("BertForMaskedLM", (), True),
        ("BertForMaskedLM", ("Pooling",), False),
        ("BertModel", (), False),
    ],
)
def test_a_masked_language_model_without_modules_may_be_either(
    tmp_path: Path, architecture: str, modules: tuple[str, ...], either: bool
) -> None:
    assert may_be_dense_or_sparse(write(tmp_path / "a", architecture, *modules)) == either
