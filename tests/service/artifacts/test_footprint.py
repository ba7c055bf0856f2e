"""Memory that a model and its export need, and precisions."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import BertConfig, MistralConfig

from model.artifact.manifest import DECODER_WEIGHTS, GOLDEN, WEIGHTS, Artifact, load_artifact
from model.config.precision import Precision
from model.errors import CheckpointError
from service.artifacts.footprint import Footprint, footprint, report, shortage, torch_footprint
from service.artifacts.opening import GIBIBYTE, check_memory, open_artifact, precision_note
from service.artifacts.repository import Source
from service.settings import Settings
from service.system import machine
from tests.service.harness import serving
from tests.service.logged import Log
from tests.service.pictures import pictures_of
from tests.service.several import fake_of, variant

MEBIBYTE = 2**20
MODELS = {"a": Footprint(300 * MEBIBYTE, 10 * MEBIBYTE), "b": Footprint(20 * MEBIBYTE, 0)}


def test_weights_are_as_large_as_the_files_that_the_engine_reads(artifact: Artifact) -> None:
    files = artifact.manifest.files
    found = footprint(artifact, Settings(threads=1))
    read = sum(one.stat().st_size for one in artifact.folder.iterdir())
    assert 0.9 * files[WEIGHTS].bytes < found.weights < read - files[GOLDEN].bytes
    assert footprint(artifact, Settings(engine="torch")).weights == files[WEIGHTS].bytes


def test_batches_grow_with_calls_and_with_the_longest_text(artifact: Artifact) -> None:
    def batches(**settings: int) -> int:
        return footprint(artifact, Settings(**settings)).batches

    one = batches(threads=1, max_length=128)
    assert batches(threads=3, max_length=128) == 3 * one
    assert batches(threads=1, max_length=128, max_batch_tokens=1024) == 2 * one
    hidden, inner, heads = 128, 512, 2
    assert one == 512 * 4 * (6 * hidden + 2 * inner + 2 * heads * 128)


def test_a_decoder_is_counted(bart_artifact: Artifact) -> None:
    """The wider stack counts, here the decoder with three heads, and the logits of a call."""
    found = footprint(bart_artifact, Settings(threads=2, max_length=16, max_batch_tokens=100))
    hidden, inner, heads, logits = 24, 32, 3, 2**23
    assert found.batches == 2 * (
        100 * 4 * (9 * hidden + 2 * inner + 4 * heads * 16) + 2 * 4 * logits
    )
    files = bart_artifact.manifest.files
    assert found.weights > sum(files[name].bytes for name in (WEIGHTS, DECODER_WEIGHTS))


def test_a_vision_tower_is_counted_with_the_tokens_of_a_picture(artifact: Artifact) -> None:
    settings = Settings(threads=1, max_length=16, max_batch_tokens=5)
    vision = pictures_of(artifact, hidden_size=artifact.manifest.config.hidden_size)
    text, alone = footprint(artifact, settings), footprint(vision, settings)
    both = footprint(dataclasses.replace(artifact, vision=vision), settings)
    assert (both.weights, both.batches) == (2 * text.weights, text.batches + alone.batches)
    assert alone.batches == 7 * 4 * (6 * 128 + 2 * 512 + 2 * 2 * 7)


def test_a_line_a_model_and_one_of_all() -> None:
    assert list(report({"a": MODELS["a"]}, 1)) == [
        "a takes about 310 MiB: 300 MiB of weights and up to 10 MiB for batches"
    ]
    assert list(report(MODELS, 1))[1:] == [
        "b takes about 20 MiB: 20 MiB of weights and up to 0 MiB for batches",
        "2 models: about 330 MiB in all",
    ]
    assert list(report(MODELS, 4))[-1] == "2 models in 4 workers: about 1320 MiB in all"
    assert list(report({"b": MODELS["b"]}, 2))[-1] == "the model in 2 workers: about 40 MiB in all"


def test_pytorchs_process_is_told(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = artifact.manifest.files[WEIGHTS].bytes
    assert torch_footprint([artifact] * 9, Settings()) == 260 * MEBIBYTE + 9 * weights
    assert torch_footprint([artifact], Settings(engine="torch")) == 0
    assert list(report(MODELS, 1, 300 * MEBIBYTE))[-1] == (
        "PyTorch takes up to 300 MiB more, in a process for all models, from the first request "
        "that needs it, such as /verify, until 5 minutes after the last"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert torch_footprint([artifact], Settings()) == 0


def test_a_shortage_is_told() -> None:
    assert shortage(MODELS, 1, None) is None
    assert shortage(MODELS, 1, 330 * MEBIBYTE) is None
    warning = shortage(MODELS, 2, 330 * MEBIBYTE)
    assert warning is not None
    assert warning.startswith("about 660 MiB are needed and 330 MiB are available: serve fewer")


@pytest.mark.anyio
async def test_it_is_logged_before_anything_is_loaded(
    artifact: Artifact, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(source: Source, *_: object) -> None:
        raise ValueError(f"{source.name} is loaded now")

    monkeypatch.setattr("service.models.state.start_model", start)
    monkeypatch.setattr("service.system.machine.available_memory", lambda: MEBIBYTE)
    artifacts = [variant(artifact, "a", 128), variant(artifact, "b", 64)]
    with pytest.raises(ValueError, match="a is loaded now"):
        async with serving(artifacts):
            pass
    reported = [one for one in log.objects if one["logger"] == "headscope"]
    assert [one["level"] for one in reported] == ["info", "info", "info", "info", "warning"]
    assert reported[1]["message"].startswith("b takes about ")
    assert "1 MiB are available" in reported[4]["message"]
    monkeypatch.undo()
    async with serving(artifacts, [fake_of(one) for one in artifacts]):
        assert len([one for one in log.objects if "takes about" in one["message"]]) == 2


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("fast", [True, False])
def test_products_that_are_missing(
    precision: Precision, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model.runtimes.openvino.saturates", lambda: not fast)
    monkeypatch.setattr("model.runtimes.openvino.computes_bfloat16", lambda: fast)
    said = f"no fast {precision} products on this processor: fp32 is likely faster"
    expected = None if fast or precision in ("fp32", "fp16") else said
    assert precision_note(precision) == expected


def test_half_precision_is_for_a_gpu() -> None:
    assert precision_note("fp16", "CUDAExecutionProvider") is None
    said = "fp16 is for a GPU: on this processor fp32 is likely faster"
    assert precision_note("fp16", "CPUExecutionProvider") == said
    assert precision_note("fp32", "CPUExecutionProvider") is None


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

    def export(checkpoint: Path, out: Path, *_: object) -> Artifact:
        time.sleep(0.1)
        shutil.copytree(tiny_artifact.folder, out)
        running.release()
        return load_artifact(out)

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
