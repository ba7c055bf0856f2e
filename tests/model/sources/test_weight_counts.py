"""Numbers of weights by the config, against PyTorch's modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5Model,
    ViTConfig,
    ViTModel,
)

from model.sources.headers import weight_count

MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertConfig, BertModel, {}),
    "bart": (BartConfig, BartModel, {}),
    "t5": (T5Config, T5Model, {}),
    "vit": (ViTConfig, ViTModel, {}),
    "qwen3": (Qwen3Config, Qwen3Model, {"num_hidden_layers": 8}),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_counted_by_the_config(tmp_path: Path, name: str) -> None:
    config, model, changes = MODELS[name]
    made = config(**changes)
    fields = made.to_dict() | {"architectures": [model.__name__]}
    (tmp_path / "config.json").write_text(json.dumps(fields, default=str))
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in model(made).parameters())
    assert weight_count(tmp_path) == pytest.approx(expected, rel=0.02)
