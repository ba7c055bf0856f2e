"""Kinds of models, against transformers' own classes of these names."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig
from transformers.models.auto import modeling_auto as auto

from model.sources.recognition import (
    AUDIO,
    DECODER,
    ENCODER_DECODER,
    KINDS,
    MULTIMODAL,
    VISION,
    kind_of,
)

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


@pytest.mark.parametrize("kind", THEIRS)
def test_names_are_of_models_of_their_kind(kind: str) -> None:
    assert {name for name, listed in KINDS.items() if listed == kind} <= THEIRS[kind]


@pytest.mark.parametrize("name", ["pegasus_x", "blenderbot", "led", "switch_transformers"])
def test_an_encoder_decoder_is_known_by_its_config(name: str) -> None:
    """transformers writes the config."""
    assert name not in KINDS
    assert kind_of(AutoConfig.for_model(name).to_dict()) == ENCODER_DECODER


@pytest.mark.parametrize("name", ["siglip2", "blip", "chinese_clip", "idefics3"])
def test_a_model_of_text_and_images_is_known_by_its_config(name: str) -> None:
    config = AutoConfig.for_model(name).to_dict() | {"model_type": "new"}
    assert kind_of(config) == MULTIMODAL


@pytest.mark.parametrize("name", ["vit", "dinov2", "deit"])
def test_a_vision_model_is_known_by_its_config(name: str) -> None:
    assert kind_of(AutoConfig.for_model(name).to_dict() | {"model_type": "new"}) == VISION


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


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "xlm-roberta", "mpnet", "deberta-v2", "modernbert", "electra"]
)
def test_a_text_encoder_is_of_no_such_kind(name: str) -> None:
    assert kind_of(AutoConfig.for_model(name).to_dict()) is None
