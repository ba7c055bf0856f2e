"""Embeddings and feed-forward parts, and tensors that do not fit their config."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from model.checkpoint import load_checkpoint, sinusoid_table
from model.config.encoder import ActivationName, AdapterLayout
from model.encoder.adapter_tensors import Matrices, low_rank_matrices, stacked
from model.encoder.embeddings import Embeddings
from model.encoder.layers import ACTIVATIONS
from model.errors import CheckpointError
from model.families.registry import parse_config, read_fields
from model.numerics.batch import pack, widen
from model.packing import PackedBatch
from tests.model.attention.test_self_attention import config_of
from tests.model.checkpoints import edit_json, edit_weights

PADDING = 1
TEXTS = [[0, 5, 1, 1, 6, 2], [1, 1], [3], [4, 1, 2]]


@pytest.mark.parametrize("wider", [0, 3], ids=["grid", "wider grid"])
def test_positions_after_padding_equal_transformers(wider: int) -> None:
    layout = {"positions": "table_after_padding"}
    embeddings = Embeddings(config_of(6, 3, pad_token_id=PADDING, embeddings=layout))
    batch = pack([(text, [0] * len(text)) for text in TEXTS])
    texts, longest = batch.padded_index.shape
    packed = PackedBatch.of(widen(batch, texts + wider, longest + wider))
    with torch.no_grad():
        assert embeddings.position is not None
        embeddings.position.weight.copy_(torch.arange(42.0)[:, None])
        embeddings.word.weight.zero_()
        embeddings.layer_norm = None
        assert embeddings.token_type is not None
        embeddings.token_type.weight.zero_()
        found = embeddings(packed)[:, 0].tolist()
    rows = RobertaEmbeddings.create_position_ids_from_input_ids
    expected = [rows(torch.tensor([text]), PADDING)[0].tolist() for text in TEXTS]
    assert found == [float(row) for text in expected for row in text]


@pytest.mark.parametrize("size", [64, 66])
def test_tables_equal_transformers(size: int) -> None:
    fields = {"d_model": size, "encoder_attention_heads": 1, "pad_token_id": 3}
    marian = parse_config({"model_type": "marian", **fields})
    expected = MarianSinusoidalPositionalEmbedding(1024, size).create_weight()
    found = sinusoid_table("marian", marian)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    m2m = parse_config({"model_type": "m2m_100", **fields})
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(1024 + 4, size, 3)
    assert torch.equal(sinusoid_table("m2m_100", m2m), expected)


def test_tables_are_real_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        for kind in ("marian", "m2m_100"):
            config = parse_config({"model_type": kind, "max_position_embeddings": 5})
            assert sinusoid_table(kind, config).device.type == "cpu"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_transformers(name: ActivationName) -> None:
    x = torch.linspace(-8, 8, 200)
    torch.testing.assert_close(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-6, rtol=1e-5)


LAYOUT = AdapterLayout(count=2, rank=2)
M, A, B = "layers.0.m", torch.ones(2, 4), torch.ones(5, 2)


def test_low_rank_matrices_are_told_by_their_keys() -> None:
    keys = ("a.lora_A", "a.lora_B.weight", "b.lora_embedding_A", "b.weight")
    matrices, others = low_rank_matrices(dict.fromkeys(keys, A))
    assert {name: {*pair} for name, pair in matrices.items()} == {"a": {"A", "B"}, "b": {"A"}}
    assert {*others} == {"b.weight"}


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ([{M: {"A": A}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": torch.ones(5, 3)}}, {}], "lacks a matrix"),
        ([{M: {"A": A, "B": B}}, {M: {"A": A[:, 1:], "B": B}}], "does not fit the encoder"),
        ([{M: {"A": torch.ones(3, 4), "B": torch.ones(5, 3)}}, {}], "does not fit the encoder"),
        ([{"layers.0.n": {"A": A, "B": B}}, {}], "does not fit the encoder"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tasks: list[Matrices], problem: str) -> None:
    tensors = {f"{M}.weight": torch.ones(5, 4)}
    with pytest.raises(
        CheckpointError, match=rf"the folder: the adapter of layers\.0\.. {problem}"
    ):
        stacked([(matrices, 1.0) for matrices in tasks], tensors, LAYOUT, "the folder")


POSITIONS = "embeddings.position_embeddings"


@pytest.fixture
def folder(picture_checkpoint: Path, tmp_path: Path) -> Path:
    """Return the checkpoint, to be damaged."""
    return Path(shutil.copytree(picture_checkpoint, tmp_path / "some folder"))


@pytest.mark.parametrize(
    ("key", "tensor", "message"),
    [
        ("embeddings.cls_token", torch.ones(1, 1, 11), "special.0 has 11 features instead of 24"),
        (POSITIONS, torch.ones(1, 9, 11), "position.weight has 11 features"),
        (
            "embeddings.position_embeddings",
            torch.ones(1, 8, 24),
            "has 8 rows, and image_size gives",
        ),
        (POSITIONS, torch.ones(1, 13, 24), "3 × 3 patches and 3 special"),
        ("embeddings.register_tokens", torch.ones(1, 3, 24), r"word.weight \(5, 24\) instead of"),
        (
            "embeddings.patch_embeddings.projection.weight",
            torch.ones(24, 3, 13, 14),
            r"patch.weight \(24, 546\) instead of \(24, 588\)",
        ),
        ("encoder.layer.1.layer_scale1.lambda1", torch.ones(11), "output.scale has 11 features"),
    ],
)
def test_tensors_of_another_shape(
    folder: Path, key: str, tensor: torch.Tensor, message: str
) -> None:
    edit_weights(folder, **{key: tensor})
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_only_a_square_table_is_interpolated(folder: Path) -> None:
    edit_json(folder / "config.json", image_size=[14, 126])
    own = load_checkpoint(folder, parse_config(read_fields(folder)))
    assert own.config.max_position_embeddings == 3 + 9
    with pytest.raises(CheckpointError, match="its position table is of 1 × 9 patches"):
        load_checkpoint(folder)
