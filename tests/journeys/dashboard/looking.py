"""A tiny ViT whose first layer looks at known patches, by their positions alone.

Its grid is not square, and its crop leaves out two sides of the picture, so that swapped rows and
columns, or a map in the wrong place, are seen.
"""

from __future__ import annotations

import json
import math
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

ROWS, COLUMNS, EDGE = 4, 6, 16
FIXED = (1, 4)
"""Patch that all tokens look at in head 0."""
STEPS = {(0, 1): 1, (1, 0): 2}
"""Head that looks so many rows and columns further, around the edges, by the step."""
HEAD_SIZE = 16
SIZE = (700, 420)
"""Width and height of the picture."""
CROP = (5 / 106 * 700, 0, 101 / 106 * 700, 420)
"""Left, top, right and bottom of the part that the model sees: of 106 × 64 pixels."""


def token(row: int, column: int) -> int:
    """Return the token of a patch; the class token comes first."""
    return 1 + row * COLUMNS + column


def write(folder: Path) -> ViTModel:
    """Save the checkpoint, and return its model."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=(ROWS * EDGE, COLUMNS * EDGE),
        patch_size=EDGE,
    )
    model = ViTModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        _look(model)
    model.save_pretrained(folder)
    steps = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"shortest_edge": ROWS * EDGE},
        "do_center_crop": True,
        "crop_size": {"height": ROWS * EDGE, "width": COLUMNS * EDGE},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    eager = {"attn_implementation": "eager", "add_pooling_layer": False}
    return ViTModel.from_pretrained(folder, **eager).eval()


def _look(model: ViTModel) -> None:
    """Set positions to one-hot vectors, and the first layer's queries and keys by them."""
    embeddings, attention = model.embeddings, model.layers[0].attention
    tokens = range(1 + ROWS * COLUMNS)
    embeddings.cls_token.zero_()
    embeddings.position_embeddings.zero_()
    embeddings.position_embeddings[0, tokens, tokens] = 4
    embeddings.patch_embeddings.projection.weight.mul_(0.02)
    for layer in (attention.q_proj, attention.k_proj):
        layer.weight.zero_()
        layer.bias.zero_()
    for head, looked_at in ((0, token(*FIXED)), (3, 0)):
        attention.k_proj.weight[head * HEAD_SIZE, looked_at] = 1
        attention.q_proj.bias[head * HEAD_SIZE] = 3
    for (down, across), head in STEPS.items():
        features = slice(head * HEAD_SIZE, head * HEAD_SIZE + 4)
        for row in range(ROWS):
            for column in range(COLUMNS):
                place = token(row, column)
                attention.k_proj.weight[features, place] = _angles(row, column)
                there = _angles(row + down, column + across)
                attention.q_proj.weight[features, place] = 0.6 * there


def _angles(row: int, column: int) -> torch.Tensor:
    turns = (column / COLUMNS, row / ROWS)
    return torch.tensor([f(2 * math.pi * t) for t in turns for f in (math.cos, math.sin)])


def grey() -> bytes:
    """Return a JPEG file of one shade of grey, over which colours of a map can be compared."""
    file = BytesIO()
    Image.new("RGB", SIZE, (128, 128, 128)).save(file, "JPEG")
    return file.getvalue()


def maps_of(model: ViTModel, folder: Path, file: bytes) -> NDArray[np.float32]:
    """Return transformers' maps `[L, N, S, S]` of a picture."""
    processor = ViTImageProcessorPil.from_pretrained(folder)
    pixels = processor(Image.open(BytesIO(file)), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        output = model(pixels, output_attentions=True)
    return torch.cat(output.attentions).numpy()
