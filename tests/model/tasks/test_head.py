"""Task heads against sentence-transformers' own pooling of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.base import modules
from sentence_transformers.sparse_encoder.modules import SpladePooling

from model.numerics.late_interaction import LateInteraction
from model.numerics.task_head import TaskConfig, Transform
from model.numerics.vector_modules import Dense, Normalize
from model.tasks.head import SparseHead, scores_of_text, task_head

HIDDEN = torch.randn((9, 8), generator=torch.manual_seed(0))


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sparse_vectors_are_sentence_transformers(pooling: str, activation: str) -> None:
    fields = {"kind": "sparse", "outputs": 30, "pooling": pooling, "activation": activation}
    head = task_head(TaskConfig.model_validate(fields), 8).eval()
    assert isinstance(head, SparseHead)
    with torch.no_grad():
        head.output.bias -= 1
        logits = head.output(HIDDEN)[None]
        features = {"token_embeddings": logits, "attention_mask": torch.ones((1, 9))}
        splade = SpladePooling(pooling, activation_function=activation).eval()  # type: ignore[arg-type]
        expected = splade(features)["sentence_embedding"][0].numpy()
    found = scores_of_text(head, HIDDEN)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert 0 < (found == 0).sum() < 30


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_transform_stands_before_the_labels(pooling: str) -> None:
    transform = Transform(size=5, activation="gelu", norm_eps=1e-5, bias=False)
    config = TaskConfig(
        kind="sequence_classification",
        outputs=3,
        pooling=pooling,
        transform=transform,  # type: ignore[arg-type]
    )
    head = task_head(config, 8).eval().requires_grad_(False)
    row = HIDDEN[:1] if pooling == "cls" else HIDDEN.mean(dim=0, keepdim=True)
    state = head.state_dict()
    inner = torch.nn.functional.gelu(row @ state["transform.dense.weight"].T)
    inner = torch.nn.functional.layer_norm(inner, (5,))
    expected = inner @ state["output.weight"].T + state["output.bias"]
    np.testing.assert_allclose(scores_of_text(head, HIDDEN), expected[0], atol=1e-6)


def test_every_token_has_its_labels() -> None:
    head = task_head(TaskConfig(kind="token_classification", outputs=3, pooling="none"), 8)
    head = head.eval().requires_grad_(False)
    np.testing.assert_array_equal(scores_of_text(head, HIDDEN), head(HIDDEN).numpy())


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
