"""Shares of both towers of a model against gradients of transformers in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.checkpoint import load_checkpoint
from model.decomposition.encoder import decomposed
from model.numerics.attention_pooling import PREFIX, AttentionPooling
from model.numerics.vector_modules import LayerNorm
from model.sources.towers import as_folders
from tests.model.tower_checkpoints import clip, save_towers, siglip
from tests.tower_oracle import Side, attributions


def without_biases(model: Any) -> Any:
    """Set the biases to zero, which gradients leave out and a decomposition shares out."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def in_vector(model: Any, encoder: Any, side: Side) -> Any:
    """Return the share of each token in the features of a vector, `[S, D]`."""
    with torch.no_grad():
        parts = decomposed(encoder, side.states[0].float()).numpy()
    clip_model = model.config.model_type == "clip"
    if not side.picture:
        projection = model.text_projection if clip_model else model.text_model.head
        return parts[-1, 1:] @ projection.weight.detach().numpy().T
    if not clip_model:
        head = {
            PREFIX + name: tensor.numpy().astype(np.float32)
            for name, tensor in model.vision_model.head.state_dict().items()
        }
        return AttentionPooling(encoder.config, head).parts(parts)[1:]
    norm = model.vision_model.post_layernorm
    tensors = {f"norm.{name}": tensor.numpy() for name, tensor in norm.state_dict().items()}
    shares = LayerNorm(dimension=parts.shape[2], eps=norm.eps).shares(parts[0, 1:], tensors)
    return shares @ model.visual_projection.weight.detach().numpy().T


@pytest.mark.parametrize("make", [clip, siglip])
def test_products_of_shares_are_second_order_attributions(make: Any, tmp_path: Path) -> None:
    model = without_biases(make())
    folder = save_towers(model, tmp_path / "whole")
    with as_folders(folder) as folders:
        encoders = {tower: load_checkpoint(path) for tower, path in folders.items()}
    model = model.double()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (1, 9), generator=generator)
    ids[0, -1] = model.config.text_config.eos_token_id
    pixels = torch.randn(1, 3, 28, 28, generator=generator, dtype=torch.float64)
    sides = Side(model, {"input_ids": ids}), Side(model, {"pixel_values": pixels})
    with torch.no_grad():
        vectors = sides[0].vector(), sides[1].vector()
    expected = attributions(sides[0].frozen_shares(), sides[1].frozen_shares(), vectors)
    of_sides = [
        torch.from_numpy(in_vector(model, encoders[tower], side)).double()
        for tower, side in zip(("text", "vision"), sides, strict=True)
    ]
    found = attributions(*of_sides, vectors)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    cosine = torch.cosine_similarity(*vectors, dim=0)
    torch.testing.assert_close(found.sum(), cosine, atol=1e-5, rtol=0)
