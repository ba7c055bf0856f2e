"""Rows of a text's positions, which the families' parity tests do not cover."""

from __future__ import annotations

import pytest
import torch
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

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
