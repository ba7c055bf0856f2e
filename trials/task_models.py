"""Models with task heads of the default model's size, whose weights are random."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import transformers

from model.sources.locate import embedded_default
from trials.servers import Service, serve

TASK_MODEL = "with-task-head"
TaskClass = Literal["ForSequenceClassification", "ForMaskedLM"]
"""Suffix of a class of transformers: of a cross-encoder, or of a sparse encoder."""


@contextlib.asynccontextmanager
async def with_task_model(task: TaskClass | None) -> AsyncIterator[Service]:
    """Run a fresh service of one model, by default of the default model.

    Args:
        task: task head of the model, then named `TASK_MODEL`; None for the default model.

    """
    if task is None:
        async with serve() as service:
            yield service
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / TASK_MODEL
        flags = ["--model", str(_copy_with_head(checkpoint, task))]
        if task == "ForMaskedLM":
            flags += ["--pooling", "splade"]
        async with serve(*flags, "--served-model-name", TASK_MODEL) as service:
            yield service


def _copy_with_head(folder: Path, task: TaskClass) -> Path:
    default = embedded_default()
    assert default is not None
    config = transformers.BertConfig.from_pretrained(default, num_labels=1)
    getattr(transformers, f"Bert{task}")(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (default / name).exists():
            shutil.copy(default / name, folder)
    return folder
