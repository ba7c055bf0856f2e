from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import JinaEmbeddingsV3Config, JinaEmbeddingsV3Model

from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.errors import CheckpointError, ConfigError
from model.families.jina_v3 import folder_name, task_folders, task_names
from model.numerics.batch import pack
from model.packing import PackedBatch
from tests.model.checkpoints import edit_json
from tests.model.families.parity import LENGTHS, SIZES, assert_equal_to, texts_of
from tests.model.jina_v3 import TASKS, Reference, write_published, write_with_folders


def test_without_adapters_it_equals_transformers(tmp_path: Path) -> None:
    config = JinaEmbeddingsV3Config(**SIZES)
    encoder = assert_equal_to(JinaEmbeddingsV3Model(config), tmp_path)
    assert encoder.config.adapters is None


@pytest.mark.parametrize("write", [write_published, write_with_folders])
def test_texts_of_all_tasks_in_one_batch_equal_transformers(
    tmp_path: Path, write: Callable[[Reference, Path], Path]
) -> None:
    reference = Reference()
    encoder = load_checkpoint(write(reference, tmp_path))
    compare_tasks(encoder, reference)


def compare_tasks(encoder: Encoder, reference: Reference) -> None:
    """Compare states and maps of one batch with a text for each task, and one for none."""
    tasks = (None, *TASKS)
    texts = texts_of(encoder, LENGTHS)
    batch = pack([(text, [number] * len(text)) for number, text in enumerate(texts)])
    with torch.no_grad():
        ours = encoder(PackedBatch.of(batch), output_attentions=True)
    start = 0
    for row, (task, text) in enumerate(zip(tasks, texts, strict=True)):
        with torch.no_grad():
            theirs = reference.of(task)(
                input_ids=text[None], output_hidden_states=True, output_attentions=True
            )
        rows = slice(start, start := start + len(text))
        for expected, found in zip(theirs.hidden_states, ours.hidden_states, strict=True):
            atol = 2e-5 * expected.abs().max().item()
            torch.testing.assert_close(found[rows], expected[0], atol=atol, rtol=0)
        for expected, found in zip(theirs.attentions, ours.attentions, strict=True):
            own = found[row, :, : len(text), : len(text)]
            torch.testing.assert_close(own, expected[0], atol=2e-5, rtol=0)


def test_an_adapter_of_peft_may_leave_maps_and_have_a_lower_rank(tmp_path: Path) -> None:
    """The first task adapts one map of one layer with one feature, the last task none."""
    reference = Reference()
    for name, (a, b) in reference.adapters.items():
        kept = name == "layers.1.mlp.fc1"
        a[0, 1:], b[0, :, 1:] = 0, 0
        if not kept:
            a[0], b[0] = 0, 0
        a[2], b[2] = 0, 0
    folder = write_with_folders(reference, tmp_path)
    path = folder / "retrieval_query" / "adapter_model.safetensors"
    prefix = "base_model.model.layers.1.mlp.fc1.lora_"
    a, b = reference.adapters["layers.1.mlp.fc1"]
    save_file(
        {f"{prefix}A.weight": a[0, :1].clone(), f"{prefix}B.weight": b[0, :, :1].clone()}, path
    )
    edit_json(folder / "retrieval_query" / "adapter_config.json", r=1, lora_alpha=1.5)
    compare_tasks(load_checkpoint(folder), reference)


def test_missing_adapters_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_with_folders(Reference(), tmp_path)
    shutil.rmtree(folder / "text_matching")
    with pytest.raises(ConfigError, match=r"lacks text_matching/adapter_config\.json"):
        load_checkpoint(folder)
    for task in ("retrieval_query", "retrieval_passage"):
        shutil.rmtree(folder / task)
    with pytest.raises(CheckpointError, match="folders such as retrieval_query hold"):
        load_checkpoint(folder)
    edit_json(folder / "config.json", lora_adaptations=None)
    assert load_checkpoint(folder).config.adapters is None


def test_a_damaged_adapter_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_published(Reference(), tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "roberta.encoder.layers.1.mlp.fc2.parametrizations.weight.0.lora_A"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path)
    with pytest.raises(CheckpointError, match=r"matrix A of the adapters of layers\.1\.feed_for"):
        load_checkpoint(folder)
    save_file(tensors | {name: tensors[name][:2].clone()}, path)
    with pytest.raises(CheckpointError, match=r"has the shape \(2, 2, 40\), for 3 adapters"):
        load_checkpoint(folder)


def test_a_config_of_peft_that_changes_the_computation_is_refused(tmp_path: Path) -> None:
    folder = write_with_folders(Reference(), tmp_path)
    for key, value in (("use_dora", True), ("rank_pattern", {"q_proj": 8})):
        path = folder / "text_matching" / "adapter_config.json"
        kept = json.loads(path.read_text())
        edit_json(path, **{key: value})
        with pytest.raises(ConfigError, match=f"text_matching/adapter_config.json: {key}: "):
            load_checkpoint(folder)
        path.write_text(json.dumps(kept))


XLM_ROBERTA = {"model_type": "xlm-roberta", "position_embedding_type": "rotary"}


def test_tasks_are_named_by_the_config_or_by_folders(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model_type": "jina_embeddings_v3"}
    assert task_names(tmp_path, fields) == ()
    for name in ("summary", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    assert task_names(tmp_path, fields) == ("code", "summary")
    assert task_names(tmp_path, fields | {"lora_adaptations": ["b", "a"]}) == ("b", "a")
    assert task_names(tmp_path, {"model_type": "bert", "lora_adaptations": ["a"]}) == ()


@pytest.mark.parametrize("named", ["a", [1], [""], ["a", "a"], {"a": 1}])
def test_tasks_are_a_list_of_different_names(tmp_path: Path, named: Any) -> None:
    with pytest.raises(ConfigError, match="lora_adaptations is not a list of task names"):
        task_names(tmp_path, XLM_ROBERTA | {"lora_adaptations": named})


def test_folders_stay_inside_the_checkpoint(tmp_path: Path) -> None:
    assert folder_name("text-matching") == "text_matching"
    assert folder_name("/../secret") == "____secret"
    assert task_folders(tmp_path, ("../a", "/b")) == {}


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "a" / name).write_text("{")
    with pytest.raises(ConfigError, match=r"a/adapter_config\.json is not readable JSON"):
        task_folders(tmp_path, ("a",))
