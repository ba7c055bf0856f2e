"""Logits of chosen words against the head in PyTorch, for every activation."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from model.artifact.mapped import mapped_tensors
from model.config.encoder import ActivationName
from model.numerics.task_head import TaskConfig, Transform
from model.numerics.word_logits import word_logits
from model.tasks.head import TaskHead


@pytest.mark.parametrize("activation", [None, *get_args(ActivationName)])
def test_they_are_the_heads(activation: ActivationName | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    transform = activation and Transform(size=5, activation=activation, norm_eps=1e-5)
    task = TaskConfig(
        kind="sparse",
        outputs=11,
        pooling="max",
        transform=transform or None,
        output_bias=activation is not None,
    )
    head = TaskHead(task, 7)
    save_file(head.state_dict(), tmp_path / "task.safetensors")
    rows, words = torch.randn(4, 7), np.array([9, 0, 3])
    with torch.inference_mode():
        expected = head(rows)[:, words].numpy()
    found = word_logits(mapped_tensors(tmp_path / "task.safetensors"), task, rows.numpy(), words)
    np.testing.assert_allclose(found, expected, atol=2e-6)
