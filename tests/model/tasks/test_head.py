"""Task heads of every family against transformers' and sentence-transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers.base import modules
from transformers import PreTrainedModel

from model.checkpoint import load_checkpoint
from model.errors import CheckpointError
from model.families.pictures import PICTURE_TYPES
from model.numerics.batch import pack
from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig, rows_of, text_scores
from model.numerics.vector_modules import Dense, Normalize
from model.packing import PackedBatch
from model.runtimes.pytorch import PyTorchRuntime
from model.sources.overlay import split
from model.tasks.checkpoint import LAYOUTS, load_task_head
from model.tasks.head import scores_of_text, task_head
from tests.model.checkpoints import edit_weights
from tests.model.families.parity import model_of, saved
from tests.model.families.picture_parity import packed_pictures
from tests.model.sentences import write_modules
from tests.model.task_checkpoints import FAMILIES, write_task_checkpoint
from tests.model.tower_checkpoints import TEXT, VISION

HIDDEN = torch.randn((9, 8), generator=torch.manual_seed(0))


@pytest.mark.parametrize(("size", "residual"), [(3, False), (3, True), (8, True)])
@pytest.mark.parametrize("activation", ["Identity", "GELU"])
def test_token_vectors_are_sentence_transformers(
    size: int, residual: bool, activation: Any
) -> None:
    fields = {"in_features": 8, "out_features": size, "residual": residual}
    dense = Dense.model_validate({**fields, "activation": activation})
    late = LateInteraction(modules=(dense, Normalize()))
    config = TaskConfig(kind="late_interaction", outputs=size, pooling="none", late=late)
    head = task_head(config, 8).eval().requires_grad_(False)
    name = "token_embeddings"
    theirs = modules.Dense(
        8,
        size,
        True,
        getattr(torch.nn, activation)(),
        use_residual=residual,
        module_input_name=name,
    ).eval()
    state = head.state_dict()
    theirs.load_state_dict({key.removeprefix("steps.0."): each for key, each in state.items()})
    with torch.inference_mode():
        features = modules.Normalize(name)(theirs({name: HIDDEN}))
    found = scores_of_text(head, HIDDEN)
    np.testing.assert_allclose(found, features[name].numpy(), atol=1e-6)
    assert config.shape(9) == found.shape


def test_a_late_interaction_model_without_modules() -> None:
    with pytest.raises(ValueError, match="no late interaction"):
        task_head(TaskConfig(kind="late_interaction", outputs=3, pooling="none"), 8)


IDS = np.array([2, 7, 8, 9, 10, 30, 3])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "MaskedLM"])
def test_logits_are_transformers(tmp_path: Path, family: str, task: str) -> None:
    assert_equal_to_transformers(tmp_path, task, family, num_labels=3)


def assert_equal_to_transformers(folder: Path, task: str, family: str, **config: Any) -> None:
    """Compare the logits of a random model of one of transformers' task classes."""
    folder = write_task_checkpoint(folder, f"For{task}", family, **config)
    if task == "MaskedLM":
        splade = {"pooling_strategy": "sum"}
        write_modules(folder, "MLMTransformer", "SpladePooling", SpladePooling=splade)
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


SIZES = VISION | {"mlp_ratio": 2, "num_register_tokens": 2}
LABELS = {"num_labels": 5}
MODELS = ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "CLIP", "Siglip")


def classifier(name: str, ending: str = "ForImageClassification") -> PreTrainedModel:
    towers = {"text_config": TEXT | {"vocab_size": 30}, "vision_config": VISION}
    sizes: dict[str, Any] = towers if name in ("CLIP", "Siglip") else SIZES
    model: PreTrainedModel = model_of(name, task=ending, **sizes | LABELS)
    return model


def assert_equals(model: PreTrainedModel, folder: Path) -> None:
    """Compare logits of two pictures, by PyTorch's head and as a runtime pools its rows."""
    saved(model, folder)
    (folder / "links").mkdir()
    folder = split(folder, folder / "links").get("vision", folder)
    encoder = load_checkpoint(folder)
    head = load_task_head(folder, encoder)
    patches = encoder.config.embeddings.patches
    assert head is not None
    assert patches is not None
    assert head.config.labels == tuple(f"LABEL_{number}" for number in range(5))
    pictures = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(5))
    batch = packed_pictures(patches, pictures)
    with torch.inference_mode():
        expected = model(pictures).logits.numpy()
        states = encoder(PackedBatch.of(batch)).hidden_states[-1].reshape(2, patches.tokens, -1)
    last = encoder.config.num_hidden_layers
    hidden, pooled = PyTorchRuntime(encoder).encode(batch, *rows_of(head.config, [0, 1], last))

    def score(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return head(torch.from_numpy(rows)).numpy()

    for found in (
        [scores_of_text(head, state) for state in states],
        text_scores(head.config, [*hidden, *pooled], score),
    ):
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(np.stack(found), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_classifiers(name: str, tmp_path: Path) -> None:
    assert_equals(classifier(name), tmp_path)


def test_a_distilled_classifier(tmp_path: Path) -> None:
    assert_equals(classifier("DeiT", "ForImageClassificationWithTeacher"), tmp_path)
    edit_weights(tmp_path, **{"distillation_classifier.weight": torch.zeros(5, 4)})
    with pytest.raises(CheckpointError, match="two classifiers differ in their shapes"):
        load_task_head(tmp_path, load_checkpoint(tmp_path))
