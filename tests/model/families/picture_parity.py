"""Comparison of a picture family's random checkpoints with transformers, which writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from model.attention.weights import Heads, attention_weights, some_heads
from model.checkpoint import load_checkpoint
from model.config.encoder import PatchLayout
from model.encoder.encoder import Encoder
from model.images.processing import patch_rows
from model.numerics.batch import Batch, pack
from model.packing import PackedBatch
from tests.model.families.parity import saved
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
    special = len(patches.special_tokens)
    ids = [*range(1, special + 1), *[0] * (patches.tokens - special)]
    blank = np.zeros((special, patches.features), np.float32)
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
    """Compare states within 1e-5 of the largest value, maps within 5e-6; one head like all.

    The last state is the reference's `last_hidden_state`, after its final norm.

    Args:
        reference: the model.
        folder: folder for its checkpoint.
        size: height and width of the pictures in pixels.
        call: further arguments of the reference's forward pass.

    """
    write_processor(saved(reference, folder), size)
    encoder = load_checkpoint(folder)
    config, patches = encoder.config, encoder.config.embeddings.patches
    assert patches is not None
    generator = torch.Generator().manual_seed(1)
    pictures = 0.3 * torch.randn(PICTURES, 3, *size, generator=generator)
    with torch.no_grad():
        batch = packed_pictures(patches, pictures)
        ours = encoder(PackedBatch.of(batch), output_attentions=True)
        theirs = reference(pictures, output_hidden_states=True, output_attentions=True, **call)
        expected = (*theirs.hidden_states[:-1], theirs.last_hidden_state)
        for found, state in zip(ours.hidden_states, expected, strict=True):
            atol = 1e-5 * state.abs().max().item()
            torch.testing.assert_close(found, state.flatten(0, 1), atol=atol, rtol=0)
        every_head = encoder.head_parameters()
        for layer, maps in enumerate(theirs.attentions):
            torch.testing.assert_close(ours.attentions[layer], maps, atol=5e-6, rtol=0)
            entering = ours.hidden_states[layer].reshape(PICTURES, patches.tokens, -1)
            parameters = some_heads(every_head[layer], [1, 0], config.num_attention_heads)
            some = attention_weights(
                Heads.from_parameters(parameters, encoder.rule), entering, entering
            )
            torch.testing.assert_close(some, maps[:, [1, 0]], atol=5e-6, rtol=0)
    sharpest = max(maps.max().item() for maps in theirs.attentions)
    assert sharpest > 0.4, "attention is nearly even, so that no fault of it would show"
    assert_packed_vectors_equal(encoder, batch, [*theirs.last_hidden_state.numpy()])
    return encoder
