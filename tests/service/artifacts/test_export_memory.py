"""Refusal of exports that take more memory than there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BertConfig, MistralConfig

from model.errors import CheckpointError
from service.artifacts.export_memory import GIBIBYTE, check_memory
from service.artifacts.opening import open_artifact
from service.settings import Settings
from service.system import machine


def test_seven_billion_weights_need_a_larger_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its config alone: there are no weights."""
    MistralConfig(sliding_window=None).save_pretrained(tmp_path)
    monkeypatch.setattr(machine, "available_memory", lambda: 8 * GIBIBYTE)
    message = (
        r"^a/b has about 7\.1 billion weights: its export takes at least 53\.\d GiB of memory on "
        r"the host, whatever the device, and 8\.0 GiB are available: run `headscope export`"
    )
    with pytest.raises(CheckpointError, match=message):
        check_memory(tmp_path, "a/b")
    for available in (128 * GIBIBYTE, None):
        monkeypatch.setattr(machine, "available_memory", lambda size=available: size)
        check_memory(tmp_path, "a/b")


def test_a_base_sized_model_needs_less_than_eight_gibibytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BertConfig().save_pretrained(tmp_path)
    monkeypatch.setattr(machine, "available_memory", lambda: 8 * GIBIBYTE)
    check_memory(tmp_path, "a/b")


def test_nothing_is_read_before_the_refusal(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 2**20)
    monkeypatch.setattr("model.export.exporter.export", None)
    settings = Settings(model=str(tiny_checkpoint), cache_folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"its export takes at least 0\.3 GiB"):
        open_artifact(settings)
