"""Checkpoints and artifacts that the tests of `model/` share."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from model.artifact import Artifact
from model.export import export
from tests.model.checkpoints import write_checkpoint

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)  # tiny tensors only: a second thread costs more than it gives


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """A factory of tiny random checkpoints, one at a time: `make_checkpoint(seed=…, **config)`."""
    return functools.partial(write_checkpoint, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint; read only."""
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny_artifact(tiny_checkpoint: Path) -> Artifact:
    """The artifact of `tiny_checkpoint`; read only."""
    return export(tiny_checkpoint, tiny_checkpoint.parent / "artifact", "tiny").artifact


@pytest.fixture(scope="session")
def tiny_fp16(tiny_checkpoint: Path) -> Artifact:
    """The fp16 artifact of `tiny_checkpoint`; read only."""
    return export(tiny_checkpoint, tiny_checkpoint.parent / "fp16", "tiny", "fp16").artifact


@pytest.fixture(scope="session")
def tiny_bf16(tiny_checkpoint: Path) -> Artifact:
    """The bf16 artifact of `tiny_checkpoint`; read only."""
    return export(tiny_checkpoint, tiny_checkpoint.parent / "bf16", "tiny", "bf16").artifact


@pytest.fixture(scope="session")
def tiny_int8(tiny_checkpoint: Path) -> Artifact:
    """The int8 artifact of `tiny_checkpoint`; read only."""
    return export(tiny_checkpoint, tiny_checkpoint.parent / "int8", "tiny", "int8").artifact


@pytest.fixture
def artifact_copy(tiny_artifact: Artifact, tmp_path: Path) -> Path:
    """A copy of `tiny_artifact` to damage."""
    return Path(shutil.copytree(tiny_artifact.folder, tmp_path / "artifact"))
