"""Special tokens and vectors of text towers alone, against transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    SiglipTextConfig,
    SiglipTextModel,
)

from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import TextVectors
from model.checkpoint import load_checkpoint
from model.errors import CheckpointError, ConfigError
from model.export.module_tensors import module_tensors
from model.export.samples import fill_up, with_text_tokens
from model.families.registry import read_config
from model.numerics.batch import pack
from model.packing import PackedBatch
from model.tokenization.tokenizer import load_tokenizer
from model.tokenization.vocabulary import model_ids
from tests.model.checkpoints import edit_json
from tests.model.families.parity import randomized
from tests.model.tower_checkpoints import TEXT, clip, save_towers

TEXTS = ["a photo", "The cat, a photo.", "x"]
END = clip().config.text_config.eos_token_id


def read(folder: Path) -> tuple[SentenceConfig, Tokenizer]:
    """Return the config and the tokenizer of a tower, which pads as the config says."""
    config = read_config(folder)
    sentence = SentenceConfig.from_checkpoint(
        folder, config.max_position_embeddings, config.hidden_size
    )
    tokenizer = load_tokenizer(folder, config, lowercase=sentence.lowercase)
    sentence = with_text_tokens(folder, sentence, tokenizer)
    fill_up(tokenizer, sentence)
    return sentence, tokenizer


def assert_vectors(folder: Path, expected: torch.Tensor) -> SentenceConfig:
    """Compare the vectors of `TEXTS` by PyTorch's encoder within 1e-5 of the largest value."""
    sentence, tokenizer = read(folder)
    encoder = load_checkpoint(folder)
    tensors = module_tensors(folder, sentence.modules)
    own = {name: tensor.numpy() for name, tensor in tensors.items()}
    vectors = TextVectors.with_tensors(sentence, encoder.config, own)
    ids = [model_ids(tokenizer, tokenizer.encode(text)) for text in TEXTS]
    batch = pack([(text, [0] * len(text)) for text in ids])
    with torch.inference_mode():
        states = encoder(PackedBatch.of(batch)).hidden_states[-1].numpy()
    each = np.split(states, batch.cu_seqlens[1:-1])
    found = vectors.finish([vectors.pool(state, sentence.pooling) for state in each])
    atol = 1e-5 * expected.abs().max().item()
    np.testing.assert_allclose(np.stack(found), expected.numpy(), atol=atol, rtol=0)
    return sentence


@pytest.mark.parametrize("eos_token_id", [END, 2], ids=["named", "highest"])
def test_clip(eos_token_id: int, tmp_path: Path) -> None:
    tokens = {"vocab_size": END + 1, "bos_token_id": END - 1, "eos_token_id": eos_token_id}
    config = CLIPTextConfig(**TEXT | tokens, projection_dim=18)
    model = randomized(CLIPTextModelWithProjection(config))
    save_towers(model, tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        sentence = assert_vectors(tmp_path, model(**inputs).text_embeds)
    assert sentence.end_token_id == END


def test_a_clip_whose_tokenizer_has_another_end_token_is_refused(tmp_path: Path) -> None:
    tokens = {"vocab_size": END + 1, "bos_token_id": END - 1, "eos_token_id": 7}
    save_towers(CLIPTextModelWithProjection(CLIPTextConfig(**TEXT | tokens)), tmp_path)
    with pytest.raises(ConfigError, match=f"pools the token 7, and the tokenizer .* with {END}"):
        read(tmp_path)
    edit_json(tmp_path / "config.json", eos_token_id="7")
    with pytest.raises(ConfigError, match="eos_token_id '7' is not a token id"):
        read(tmp_path)


def test_siglip(tmp_path: Path) -> None:
    tokens: dict[str, Any] = {"vocab_size": 520, "bos_token_id": 1, "eos_token_id": 1}
    model = randomized(SiglipTextModel(SiglipTextConfig(**TEXT | tokens, projection_size=16)))
    save_towers(model, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(TEXTS, padding="max_length", max_length=20, return_tensors="pt").input_ids
    with torch.inference_mode():
        sentence = assert_vectors(tmp_path, model(input_ids=ids).pooler_output)
    assert (sentence.pad_token_id, sentence.max_length) == (1, TEXT["max_position_embeddings"])
    edit_json(tmp_path / "tokenizer_config.json", padding_side="left")
    with pytest.raises(CheckpointError, match=r"pads texts at their start \(padding_side\)"):
        read(tmp_path)
