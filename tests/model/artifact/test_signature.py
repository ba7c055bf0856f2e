"""Signatures of the graphs, written out by hand and matched to their input arrays."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from model.artifact.signature import (
    Float,
    GraphSignature,
    TensorSpec,
    attention_signature,
    device_attention_signature,
    device_pooling_signature,
    encoder_signature,
    head_parameter_name,
    task_signature,
)
from model.config.encoder import EmbeddingLayout, EncoderConfig, PatchLayout
from model.families.registry import parse_config
from model.numerics.batch import Batch, Floats, pack, padded
from model.numerics.task_head import TaskConfig
from tests.model.checkpoints import TINY

CONFIG = parse_config(TINY | {"model_type": "bert"})
L, N, H = 2, 3, 12
PARAMETERS = {"query_weight": (4, H), "key_bias": (4,), "scale": ()}
Axes = tuple[int | str, ...]


def axes_of(specs: tuple[TensorSpec, ...]) -> dict[str, Axes]:
    return {spec.name: spec.axes for spec in specs}


@pytest.mark.parametrize("lengths", [[1], [5, 2, 9], [7, 7]])
def test_a_batch_and_a_head_mask_feed_the_encoder(lengths: list[int]) -> None:
    texts = [(range(n), [0] * n) for n in lengths]
    mask = np.ones((len(lengths), L, N), np.float32)
    of_pictures = EmbeddingLayout(patches=PatchLayout(size=2, rows=1, columns=1))
    for config in (CONFIG, CONFIG.model_copy(update={"embeddings": of_pictures})):
        features = config.pixel_features
        batch = pack(texts, pixels=[np.ones((n, 12), np.float32) for n in lengths if features])
        check_inputs(config, batch, mask)
        specs = encoder_signature(config, "float16").inputs
        grids = padded(batch, 0) | {"head_mask": mask}
        assert {spec.name for spec in specs} == set(grids)
        for spec in specs:
            assert grids[spec.name].dtype == spec.dtype
            assert grids[spec.name].ndim == len(spec.axes)


def check_inputs(config: EncoderConfig, batch: Batch, mask: Floats) -> None:
    lengths = np.diff(batch.cu_seqlens)
    specs = encoder_signature(config).inputs
    sizes: dict[int | str, int] = {"tokens": int(sum(lengths)), "batch": len(lengths)}
    sizes["sequence"] = int(max(lengths))
    for spec, array in zip(specs, (*batch.inputs, mask), strict=True):
        assert array.shape == tuple(sizes.get(axis, axis) for axis in spec.axes), spec.name
        assert array.dtype == spec.dtype
    named = [name for name, array in vars(batch).items() if array is not None]
    assert [spec.name for spec in specs] == [*named, "head_mask"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_encoder_answers_with_every_hidden_state(dtype: Float) -> None:
    outputs = encoder_signature(CONFIG, dtype).outputs
    tokens = {"float32": "tokens", "float16": "batch*sequence"}[dtype]
    assert axes_of(outputs) == {f"hidden_state.{layer}": (tokens, H) for layer in range(L + 1)}
    assert {spec.dtype for spec in outputs} == {dtype}


def test_the_attention_graph_takes_the_parameters_of_some_heads() -> None:
    signature = attention_signature(CONFIG, PARAMETERS)
    assert list(axes_of(signature.inputs).items()) == [
        ("query_states", ("batch", "queries", H)),
        ("key_states", ("batch", "keys", H)),
        ("query_weight", ("heads", 4, H)),
        ("key_bias", ("heads", 4)),
        ("scale", ("heads",)),
    ]
    assert axes_of(signature.outputs) == {"attention": ("batch", "heads", "queries", "keys")}
    assert {spec.dtype for spec in (*signature.inputs, *signature.outputs)} == {"float32"}


def test_on_a_device_it_takes_those_of_all_heads_and_their_numbers() -> None:
    signature = device_attention_signature(CONFIG, PARAMETERS, "float16")
    assert [(spec.name, spec.axes, spec.dtype) for spec in signature.inputs] == [
        ("query_states", ("queries", H), "float32"),
        ("key_states", ("keys", H), "float32"),
        ("heads", ("heads",), "int64"),
        ("query_weight", (N, 4, H), "float16"),
        ("key_bias", (N, 4), "float16"),
        ("scale", (N,), "float16"),
    ]
    (weights,) = signature.outputs
    assert (weights.axes, weights.dtype) == (("heads", "queries", "keys"), "float32")


def test_a_device_pools_sets_of_rows() -> None:
    signature = device_pooling_signature(CONFIG, "float16")
    assert list(axes_of(signature.inputs).items()) == [
        ("hidden_state", ("tokens", H)),
        ("first_row", ("vectors",)),
        ("row_count", ("vectors",)),
        ("columns", ("columns",)),
        ("maximum", ("vectors",)),
        ("first_weight", ("vectors",)),
        ("unit_features", ("vectors",)),
    ]
    assert [spec.dtype for spec in signature.inputs] == ["float16", *["int64"] * 6]
    assert axes_of(signature.outputs) == {"vectors": ("vectors", H)}
    assert signature.outputs[0].dtype == "float32"


def test_a_heads_parameter_is_named_by_its_layer() -> None:
    assert head_parameter_name("score.weight", 11) == "score.weight.11"


def test_a_signature_is_read_as_it_was_written() -> None:
    signature = device_attention_signature(CONFIG, PARAMETERS, "float16")
    written = signature.model_dump_json()
    assert GraphSignature.model_validate_json(written) == signature
    with pytest.raises(ValidationError, match="bfloat16"):
        GraphSignature.model_validate_json(written.replace("float16", "bfloat16"))


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (TaskConfig(kind="sequence_classification", outputs=5, pooling="cls"), "vectors"),
        (TaskConfig(kind="token_classification", outputs=5, pooling="none"), "vectors"),
        (TaskConfig(kind="sparse", outputs=5, pooling="max"), 1),
    ],
)
def test_a_task_head_takes_rows(task: TaskConfig, rows: int | str) -> None:
    signature = task_signature(CONFIG, task)
    assert axes_of(signature.inputs) == {"rows": ("vectors", H)}
    assert axes_of(signature.outputs) == {"scores": (rows, 5)}
