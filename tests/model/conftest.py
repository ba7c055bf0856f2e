"""Checkpoints and artifacts that the tests of `model/` share."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from model.artifact.manifest import Artifact
from model.sources.locate import DEFAULT_MODEL
from tests.hub import NAME, StandIn, running
from tests.model.checkpoints import write_checkpoint

transformers_logging.disable_progress_bar()
torch.set_num_threads(1)  # tiny tensors only: a second thread costs more time than it saves


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Return a factory of tiny random checkpoints: `make_checkpoint(seed=…, **config)`."""
    return functools.partial(write_checkpoint, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def tiny_artifact(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return the artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny")


@pytest.fixture(scope="session")
def tiny_fp16(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return the fp16 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "fp16")


@pytest.fixture(scope="session")
def tiny_bf16(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return the bf16 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "bf16")


@pytest.fixture(scope="session")
def tiny_int8(exported: Callable[..., Artifact], tiny_checkpoint: Path) -> Artifact:
    """Return the int8 artifact of `tiny_checkpoint`; read only."""
    return exported(tiny_checkpoint, "tiny", "int8")


@pytest.fixture
def artifact_copy(tiny_artifact: Artifact, tmp_path: Path) -> Path:
    """Return a copy of `tiny_artifact` to damage."""
    return Path(shutil.copytree(tiny_artifact.folder, tmp_path / "artifact"))


@pytest.fixture
def repository(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Return the tiny checkpoint as a repository of a hub, with further unneeded files."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "repository"))
    for unwanted in (
        *("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "README.md", "image.png"),
        *("onnx/model.onnx", "onnx/config.json", "openvino/openvino_model.xml", "model.gguf"),
        *("setup.py", "training_args.bin", "1_Pooling/notes.txt", "other/model.safetensors"),
        *("model.fp16.safetensors", "trainer_state.json", ".gitattributes"),
    ):
        (folder / unwanted).parent.mkdir(exist_ok=True)
        (folder / unwanted).write_bytes(b"not to be fetched")
    return folder


@pytest.fixture
def hub(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Return a fake hub with the repository under two names."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between huggingface_hub's own attempts
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with running({NAME: repository, DEFAULT_MODEL: repository}) as server:
        yield server
