"""Assignment of a checkpoint's tensors to its encoder and its task head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.export.loading import load_modules
from model.families.registry import read_config
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import edit_weights
from tests.model.late_checkpoints import write_pylate, write_stanford


def test_an_encoder_and_its_projection(tmp_path: Path) -> None:
    folder = write_stanford(tmp_path / "model")
    projection = torch.arange(72.0).reshape(6, 12)
    edit_weights(folder, **{"linear.weight": projection})
    config = read_config(folder)
    encoder, head, _ = load_modules(folder, load_tokenizer(folder, config, lowercase=False), config)
    assert head is not None
    (held,) = head.state_dict().values()
    assert torch.equal(held, projection)
    alone = load_checkpoint(folder, config, ["linear.weight"]).state_dict()
    found = encoder.state_dict()
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[name], alone[name]) for name in alone)


def test_a_stray_projection_is_still_unexpected(tmp_path: Path) -> None:
    """Only Stanford's format has a projection beside its encoder."""
    folder = write_pylate(tmp_path / "model")
    edit_weights(folder, **{"linear.weight": torch.zeros(6, 12)})
    tokenizer = load_tokenizer(folder, read_config(folder), lowercase=False)
    with pytest.raises(CheckpointError, match=r"unexpected: linear\.weight"):
        load_modules(folder, tokenizer)
