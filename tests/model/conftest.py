"""Checkpoints and artifacts that the tests of `model/` share."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from model.artifact.manifest import Artifact
from tests.model.checkpoints import write_checkpoint

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)  # tiny tensors only: a second thread costs more than it gives


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A factory of tiny random checkpoints, one at a time: `make_checkpoint(seed=…, **config)`."""
    return functools.partial(write_checkpoint, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def tiny_artifact(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """The artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny")


@pytest.fixture(scope="session")
def tiny_fp16(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """The fp16 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "fp16")


@pytest.fixture(scope="session")
def tiny_bf16(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """The bf16 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "bf16")


@pytest.fixture(scope="session")
def tiny_int8(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """The int8 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "int8")


@pytest.fixture
def artifact_copy(tiny_artifact: Artifact, tmp_path: Path) -> Path:
    """A copy of `tiny_artifact` to damage."""
    return Path(shutil.copytree(tiny_artifact.folder, tmp_path / "artifact"))
