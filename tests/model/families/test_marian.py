from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MarianConfig, MarianMTModel

from model.checkpoint import load_checkpoint
from model.families.marian import MarianConfig as Keys
from tests.model.checkpoints import edit_weights
from tests.model.families.decoder_parity import SIZES, assert_pair_equal_to

OWN_WORDS = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50}


@pytest.mark.parametrize(
    "changes",
    [
        {"pad_token_id": 50, "decoder_start_token_id": 60, "scale_embedding": True},
        OWN_WORDS | {"decoder_start_token_id": 1, "activation_function": "swish"},
    ],
    ids=str,
)
def test_it_equals_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    model = MarianMTModel(MarianConfig(**SIZES | changes))
    decoder = assert_pair_equal_to(model, tmp_path, ((9, 5), (1, 1), (17, 48), (48, 2)))
    assert decoder.config.layers.vocab_size == changes.get("decoder_vocab_size", 61)


def test_a_position_table_that_is_there_is_read(tmp_path: Path) -> None:
    """Checkpoints of older versions contain it."""
    MarianMTModel(MarianConfig(**SIZES, decoder_start_token_id=1)).save_pretrained(tmp_path)
    computed = load_checkpoint(tmp_path).state_dict()["embeddings.position.weight"]
    assert not any("positions" in key for key in load_file(tmp_path / "model.safetensors"))
    edit_weights(tmp_path, **{"model.encoder.embed_positions.weight": computed.flip(0)})
    found = load_checkpoint(tmp_path).state_dict()["embeddings.position.weight"]
    assert torch.equal(found, computed.flip(0))


def test_defaults_are_transformers() -> None:
    keys, theirs = Keys(model_type="marian").model_dump(), MarianConfig().to_dict()
    names = keys.keys() & theirs.keys() - {"architectures", "decoder_vocab_size"}
    assert len(names) > 12
    assert {name: keys[name] for name in names} == {name: theirs[name] for name in names}
