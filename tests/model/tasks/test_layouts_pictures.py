"""Heads of image classifiers against transformers, eager and in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import PreTrainedModel

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.images.patches import patch_rows
from model.numerics.batch import pack
from model.numerics.task_head import rows_of, text_scores
from model.packing import PackedBatch
from model.runtimes.pytorch import PyTorchRuntime
from model.sources.towers import split
from model.tasks.checkpoint import load_task_head
from model.tasks.head import scores_of_text
from tests.model.checkpoints import edit_weights
from tests.model.families.parity import saved
from tests.model.tower_checkpoints import TEXT, VISION

SIZES = VISION | {"mlp_ratio": 2, "num_register_tokens": 2}
LABELS = {"num_labels": 5}
MODELS = ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "CLIP", "Siglip")


def classifier(name: str, ending: str = "ForImageClassification") -> PreTrainedModel:
    config = getattr(transformers, f"{name}Config")
    towers = {"text_config": TEXT | {"vocab_size": 30}, "vision_config": VISION}
    sizes: dict[str, Any] = towers if name in ("CLIP", "Siglip") else SIZES
    model: PreTrainedModel = getattr(transformers, name + ending)(config(**sizes | LABELS))
    return model


def assert_equals(model: PreTrainedModel, folder: Path) -> None:
    """Compare logits of two pictures, by PyTorch's head and as a runtime pools its rows."""
    saved(model, folder)
    (folder / "links").mkdir()
    folder = split(folder, folder / "links").get("vision", folder)
    encoder = load_checkpoint(folder)
    head = load_task_head(folder, encoder)
    patches = encoder.config.embeddings.patches
    assert head is not None
    assert patches is not None
    assert head.config.labels == tuple(f"LABEL_{number}" for number in range(5))
    pictures = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    special = len(patches.special_tokens)
    ids = [*range(1, special + 1), *[0] * (patches.tokens - special)]
    blank = np.zeros((special, patches.features), np.float32)
    pixels = [np.concatenate((blank, patch_rows(own.numpy(), patches.size))) for own in pictures]
    batch = pack([(ids, [0] * len(ids))] * 2, pixels=pixels)
    with torch.inference_mode():
        expected = model(pictures).logits.numpy()
        states = encoder(PackedBatch.of(batch)).hidden_states[-1].reshape(2, patches.tokens, -1)
    last = encoder.config.num_hidden_layers
    hidden, pooled = PyTorchRuntime(encoder).encode(batch, *rows_of(head.config, [0, 1], last))

    def score(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return head(torch.from_numpy(rows)).numpy()

    for found in (
        [scores_of_text(head, state) for state in states],
        text_scores(head.config, [*hidden, *pooled], score),
    ):
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(np.stack(found), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_classifiers(name: str, tmp_path: Path) -> None:
    assert_equals(classifier(name), tmp_path)


def test_a_distilled_classifier(tmp_path: Path) -> None:
    assert_equals(classifier("DeiT", "ForImageClassificationWithTeacher"), tmp_path)
    edit_weights(tmp_path, **{"distillation_classifier.weight": torch.zeros(5, 4)})
    with pytest.raises(CheckpointError, match="two classifiers differ in their shapes"):
        load_task_head(tmp_path, load_checkpoint(tmp_path))
