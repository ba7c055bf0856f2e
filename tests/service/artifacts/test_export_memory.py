"""Refusal of exports that take more memory than there is."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import BertConfig, MistralConfig

from model.artifact.manifest import Artifact, load_artifact
from model.errors import CheckpointError
from model.export.exporter import Exported
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


def test_exports_into_a_cache_are_checked_and_run_one_at_a_time(
    tiny_artifact: Artifact, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each would find the memory free that the others are about to take."""
    running, checked = threading.Semaphore(1), []

    def export(checkpoint: Path, out: Path, *_: object) -> Exported:
        time.sleep(0.1)
        shutil.copytree(tiny_artifact.folder, out)
        running.release()
        return Exported(load_artifact(out), tiny_artifact.manifest.verification)

    def check(checkpoint: Path, _: str) -> None:
        assert running.acquire(blocking=False), "another export runs"
        checked.append(checkpoint)

    monkeypatch.setattr("model.export.exporter.export", export)
    monkeypatch.setattr("service.artifacts.opening.check_memory", check)
    folders = [Path(shutil.copytree(tiny_checkpoint, tmp_path / name)) for name in "ab"]
    wanted = [Settings(model=str(one), cache_folder=tmp_path / "cache") for one in 2 * folders]
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(open_artifact, wanted))
    assert sorted(checked) == folders, "each checkpoint once"
    assert len({artifact.folder for artifact in opened}) == 2
