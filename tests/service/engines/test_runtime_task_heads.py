"""Scores of a task head beside other tasks: each text gets its own, in any batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model.checkpoint import load_checkpoint
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.runtimes.pytorch import PyTorchRuntime
from model.tasks.checkpoint import load_task_head
from model.tasks.head import scores_of_text
from service.engines.contract import MapsTask, Pooling, TextTask
from service.engines.runtime import RuntimeEngine
from service.errors import EngineFailed
from service.scheduler.outputs import check_outputs
from tests.model.task_checkpoints import write_sparse_checkpoint, write_task_checkpoint

IDS = [np.random.default_rng(n).integers(5, 60, n) for n in (3, 9, 1, 30, 5)]


def ranking(folder: Path) -> Path:
    return write_task_checkpoint(folder, family="ModernBert", num_labels=2)


def tagging(folder: Path) -> Path:
    return write_task_checkpoint(folder, "ForTokenClassification")


@pytest.mark.parametrize("write", [ranking, tagging, write_sparse_checkpoint])
def test_scores_stand_beside_all_that_can_be_asked(tmp_path: Path, write: object) -> None:
    assert callable(write)
    folder = write(tmp_path / "checkpoint")
    encoder = load_checkpoint(folder)
    head = load_task_head(folder, encoder)
    assert head is not None
    shapes = [head.config.shape(len(ids)) for ids in IDS]
    texts = [
        TextTask(IDS[0], IDS[0] * 0, scores=shapes[0]),
        TextTask(IDS[1], IDS[1] * 0, (1, 2), Pooling(2, "max")),
        TextTask(IDS[2], IDS[2] * 0, (0,), Pooling(1, "mean"), scores=shapes[2]),
        TextTask(IDS[3], IDS[3] * 0, scores=shapes[3]),
        TextTask(IDS[4], IDS[4] * 0, (2,)),
    ]
    states = np.zeros((2, 12), np.float32)
    tasks = [*texts[:2], MapsTask(states, states, 0, (1,)), *texts[2:]]
    engine = RuntimeEngine("torch", PyTorchRuntime(encoder, head), concurrency=1)
    outputs = engine.run(tasks)
    check_outputs(tasks, outputs, engine.hidden_size)
    for task, output in zip(texts, [*outputs[:2], *outputs[3:]], strict=True):
        batch = PackedBatch.of(pack([(task.input_ids, task.segment_ids)]))
        with torch.inference_mode():
            hidden = encoder(batch).hidden_states
        for layer, found in zip(task.hidden_layers, output.hidden, strict=True):
            np.testing.assert_allclose(found, hidden[layer].numpy(), atol=1e-5)
        if task.pooling and task.pooling.mode == "max":
            largest = hidden[2].amax(dim=0).numpy()
            np.testing.assert_allclose(output.pooled, largest, atol=1e-5)
        assert (output.scores is None) == (not task.scores)
        if output.scores is not None:
            expected = scores_of_text(head, hidden[-1])
            np.testing.assert_allclose(output.scores, expected, atol=1e-4)


def test_an_encoder_alone_leaves_scores_out(tiny: RuntimeEngine) -> None:
    task = TextTask(IDS[0], IDS[0] * 0, (0,), scores=(3,))
    with pytest.raises(EngineFailed, match="left out"):
        check_outputs([task], tiny.run([task]), tiny.hidden_size)


@pytest.fixture
def tiny(tiny_checkpoint: Path) -> RuntimeEngine:
    return RuntimeEngine("torch", PyTorchRuntime(load_checkpoint(tiny_checkpoint)), concurrency=1)
