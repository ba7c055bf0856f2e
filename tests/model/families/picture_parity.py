"""Comparison of a picture family's random checkpoints with transformers, which writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from model.checkpoint import load_checkpoint
from model.config.encoder import PatchLayout, patches_of
from model.encoder.encoder import Encoder
from model.images.processing import patch_rows
from model.numerics.batch import Batch, pack
from model.packing import PackedBatch
from tests.model.families.parity import assert_row_equal, saved
from tests.model.packed_vectors import assert_packed_vectors_equal

SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
PICTURES = 2


def packed_pictures(
    patches: PatchLayout, pictures: torch.Tensor, unseen: Sequence[Sequence[int]] = ()
) -> Batch:
    """Return pictures `[B, C, h, w]` as a batch of special tokens and patches."""
    ids = patches.token_ids
    blank = np.zeros((len(patches.special_tokens), patches.features), np.float32)
    pixels = [np.concatenate((blank, patch_rows(own.numpy(), patches.size))) for own in pictures]
    return pack([(ids, [0] * len(ids))] * len(pictures), unseen, pixels)


def write_processor(folder: Path, size: tuple[int, int]) -> None:
    """Write an image processor that resizes pictures to a height and a width."""
    fields = {
        "image_processor_type": "ViTImageProcessor",
        "size": dict(zip(("height", "width"), size, strict=True)),
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))


def assert_equal_to(
    reference: PreTrainedModel, folder: Path, size: tuple[int, int], **call: Any
) -> Encoder:
    """Compare states and maps of pictures of a height and a width in pixels, as for texts.

    `call` are further arguments of the reference's forward pass.
    """
    write_processor(saved(reference, folder), size)
    encoder = load_checkpoint(folder)
    patches = patches_of(encoder.config)
    generator = torch.Generator().manual_seed(1)
    pictures = 0.3 * torch.randn(PICTURES, 3, *size, generator=generator)
    sharpest, last_states = 0.0, []
    with torch.no_grad():
        batch = packed_pictures(patches, pictures)
        ours = encoder(PackedBatch.of(batch), output_attentions=True)
        for row, picture in enumerate(pictures):
            theirs = reference(
                picture[None], output_hidden_states=True, output_attentions=True, **call
            )
            rows = slice(row * patches.tokens, (row + 1) * patches.tokens)
            sharpest = max(sharpest, assert_row_equal(encoder, ours, theirs, row, rows))
            last_states.append(theirs.last_hidden_state[0].numpy())
    assert sharpest > 0.4, "attention is nearly even, so that no fault of it would show"
    assert_packed_vectors_equal(encoder, batch, last_states)
    return encoder
