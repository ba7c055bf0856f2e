"""Rows of a text's positions, which the families' parity tests do not cover."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import ViTConfig
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.vit.modeling_vit import ViTEmbeddings

from model.config.encoder import EmbeddingLayout, PatchLayout
from model.encoder.embeddings import Embeddings
from model.numerics.batch import pack, widen
from model.packing import PackedBatch
from tests.model.attention.test_self_attention import config_of

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


def test_what_a_layout_has_not_takes_no_parameters() -> None:
    layout = {"positions": "none", "norm": False}
    embeddings = Embeddings(config_of(6, 3, type_vocab_size=0, embeddings=layout))
    assert [name for name, _ in embeddings.named_parameters()] == ["word.weight"]


@pytest.mark.parametrize("size", [(4, 6), (4, 4), (2, 8)], ids=str)
def test_patches_equal_transformers(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    theirs = ViTEmbeddings(ViTConfig(hidden_size=6, image_size=size, patch_size=2)).eval()
    rows, columns = (edge // 2 for edge in size)
    layout = PatchLayout(size=2, rows=rows, columns=columns, special_tokens=("[CLS]",))
    config = config_of(
        *(6, 3), vocab_size=2, type_vocab_size=0, max_position_embeddings=1 + rows * columns
    ).model_copy(update={"embeddings": EmbeddingLayout(norm=False, patches=layout)})
    ours = Embeddings(config)
    picture = torch.randn(2, 3, *size)
    patches = functional.unfold(picture, 2, stride=2).transpose(1, 2)  # [B, patches, F]
    pixels = functional.pad(patches, (0, 0, 1, 0)).numpy()
    ids = [1] + [0] * rows * columns
    batch = pack([(ids, [0] * len(ids))] * 2, pixels=pixels)
    conv = theirs.patch_embeddings.projection
    with torch.no_grad():
        theirs.position_embeddings.normal_()
        theirs.cls_token.normal_()
        ours.word.weight.copy_(torch.stack((conv.bias, theirs.cls_token.flatten())))
        ours.patch.weight.copy_(conv.weight.flatten(1))  # type: ignore[union-attr]
        ours.position.weight.copy_(theirs.position_embeddings[0])  # type: ignore[union-attr]
        found = ours(PackedBatch.of(batch)).reshape(2, len(ids), 6)
        torch.testing.assert_close(found, theirs(picture), atol=1e-6, rtol=0)
