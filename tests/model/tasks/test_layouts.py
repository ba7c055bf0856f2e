"""Task heads of every family in PyTorch, against transformers' own task models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from model.checkpoint import load_checkpoint
from model.families.pictures import PICTURE_TYPES
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.tasks.checkpoint import load_task_head
from model.tasks.head import scores_of_text
from model.tasks.layouts import LAYOUTS
from tests.model.checkpoints import edit_json
from tests.model.task_checkpoints import FAMILIES, write_task_checkpoint

IDS = np.array([2, 7, 8, 9, 10, 30, 3])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "MaskedLM"])
def test_logits_are_transformers(tmp_path: Path, family: str, task: str) -> None:
    assert_equal_to_transformers(tmp_path, task, family, num_labels=3)


def assert_equal_to_transformers(folder: Path, task: str, family: str, **config: Any) -> None:
    """Compare the logits of a random model of one of transformers' task classes."""
    folder = write_task_checkpoint(folder, f"For{task}", family, **config)
    if task == "MaskedLM":
        kind = "sentence_transformers.models"
        modules = '[{"type": "%s.MLMTransformer"}, {"type": "%s.SpladePooling", "path": "1"}]'
        (folder / "modules.json").write_text(modules % (kind, kind))
        (folder / "1").mkdir()
        edit_json(folder / "1" / "config.json", pooling_strategy="sum")
    encoder = load_checkpoint(folder)
    head = load_task_head(folder, encoder)
    assert head is not None
    model = getattr(transformers, f"AutoModelFor{task}").from_pretrained(folder).eval()
    with torch.inference_mode():
        hidden = encoder(PackedBatch.of(pack([(IDS, IDS * 0)]))).hidden_states[-1]
        logits = model(input_ids=torch.from_numpy(IDS)[None]).logits
    expected = torch.log1p(torch.relu(logits)).sum(dim=1) if task == "MaskedLM" else logits
    expected = expected if task == "TokenClassification" else expected[:, None]
    found = scores_of_text(head, hidden).reshape(expected.shape[1:])
    np.testing.assert_allclose(found, expected[0].numpy(), atol=2e-5)
    assert np.ptp(found) > 0.01


def test_every_kind_knows_the_same_families() -> None:
    names = {"albert", "bert", "camembert", "deberta-v2", "distilbert", "electra", "modernbert"}
    names |= {"gte", "mpnet", "new", "roberta", "xlm-roberta"}
    causal = {"llama", "mistral", "qwen2", "qwen3"}
    expected = {"sequence_classification": names | causal | PICTURE_TYPES}
    assert {kind: set(known) for kind, known in LAYOUTS.items()} == {
        kind: expected.get(kind, names) for kind in LAYOUTS
    }


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_a_causal_classifier_reads_the_last_token(tmp_path: Path, family: str) -> None:
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "num_labels": 2}
    assert_equal_to_transformers(tmp_path, "SequenceClassification", family, **sizes)
