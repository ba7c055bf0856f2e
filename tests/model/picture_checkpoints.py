"""Small random checkpoint of a picture encoder, as transformers writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from tests.model.families.parity import randomized

PICTURES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "mlp_ratio": 2,
    "image_size": 42,
    "patch_size": 14,
    "num_register_tokens": 2,
}
PROCESSOR: dict[str, Any] = {
    "image_processor_type": "BitImageProcessor",
    "do_center_crop": True,
    "crop_size": {"height": 28, "width": 42},
    "size": {"shortest_edge": 48},
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def write_pictures(folder: Path) -> Path:
    """Write a DINOv2 with two registers, trained on 3 × 3 patches, and a processor for 2 × 3."""
    model = randomized(Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**PICTURES)))
    with torch.no_grad():  # smaller weights, so that half precision is within its tolerance
        for parameter in model.parameters():
            parameter.mul_(0.5 if parameter.dim() > 1 else 1)
        model.embeddings.patch_embeddings.projection.weight.mul_(0.2)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder
