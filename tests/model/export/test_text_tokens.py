"""Vectors of exported text towers, against transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    SiglipTextConfig,
    SiglipTextModel,
)

from model.artifact.manifest import TOKENIZER, Artifact
from model.artifact.tokenizer import read_tokenizer
from model.artifact.vectors import TextVectors
from model.errors import CheckpointError, ConfigError
from model.export.exporter import export
from model.export.text_tokens import fill_up
from model.numerics.batch import pack
from model.numerics.pooling import TextPooling
from model.runtimes.registry import load_runtime
from model.tokenization.vocabulary import model_ids
from tests.model.checkpoints import edit_json
from tests.model.families.parity import randomized
from tests.model.tower_checkpoints import TEXT, clip, save_towers

TEXTS = ["a photo", "The cat, a photo.", "x"]
END = clip().config.text_config.eos_token_id


def vectors_of(artifact: Artifact, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the artifact's vectors of texts, by its runtime."""
    manifest = artifact.manifest
    tokenizer = read_tokenizer(artifact.path(TOKENIZER))
    fill_up(tokenizer, manifest.sentence)
    encoded = [model_ids(tokenizer, tokenizer.encode(text)) for text in texts]
    last = manifest.config.num_hidden_layers
    poolings = [TextPooling(n, last, manifest.sentence.pooling) for n in range(len(texts))]
    batch = pack([(ids, [0] * len(ids)) for ids in encoded])
    _, pooled = load_runtime(artifact).encode(batch, [], poolings)
    return TextVectors.of(artifact).finish(pooled)


def assert_equals(artifact: Artifact, expected: torch.Tensor) -> None:
    assert artifact.manifest.verification.passed, artifact.manifest.verification.failed
    found = np.stack(vectors_of(artifact, TEXTS))
    atol = 1e-5 * expected.abs().max().item()
    np.testing.assert_allclose(found, expected.numpy(), atol=atol, rtol=0)


@pytest.mark.parametrize("eos_token_id", [END, 2], ids=["named", "highest"])
def test_clip(eos_token_id: int, tmp_path: Path) -> None:
    tokens = {"vocab_size": END + 1, "bos_token_id": END - 1, "eos_token_id": eos_token_id}
    model = randomized(
        CLIPTextModelWithProjection(CLIPTextConfig(**TEXT | tokens, projection_dim=18))
    )
    artifact = export(save_towers(model, tmp_path / "a"), tmp_path / "b", "clip").artifact
    assert artifact.manifest.sentence.end_token_id == END
    inputs = AutoTokenizer.from_pretrained(tmp_path / "a")(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        assert_equals(artifact, model(**inputs).text_embeds)


def test_a_clip_whose_tokenizer_has_another_end_token_is_refused(tmp_path: Path) -> None:
    tokens = {"vocab_size": END + 1, "bos_token_id": END - 1, "eos_token_id": 7}
    model = CLIPTextModelWithProjection(CLIPTextConfig(**TEXT | tokens))
    save_towers(model, tmp_path / "a")
    with pytest.raises(ConfigError, match=f"pools the token 7, and the tokenizer .* with {END}"):
        export(tmp_path / "a", tmp_path / "b", "clip")
    edit_json(tmp_path / "a" / "config.json", eos_token_id="7")
    with pytest.raises(ConfigError, match="eos_token_id '7' is not a token id"):
        export(tmp_path / "a", tmp_path / "b", "clip")


def test_siglip(tmp_path: Path) -> None:
    tokens: dict[str, Any] = {"vocab_size": 520, "bos_token_id": 1, "eos_token_id": 1}
    model = randomized(SiglipTextModel(SiglipTextConfig(**TEXT | tokens, projection_size=16)))
    artifact = export(save_towers(model, tmp_path / "a"), tmp_path / "b", "siglip").artifact
    sentence = artifact.manifest.sentence
    assert (sentence.pad_token_id, sentence.max_length) == (1, TEXT["max_position_embeddings"])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    ids = tokenizer(TEXTS, padding="max_length", max_length=20, return_tensors="pt").input_ids
    with torch.inference_mode():
        assert_equals(artifact, model(input_ids=ids).pooler_output)
    edit_json(tmp_path / "a" / "tokenizer_config.json", padding_side="left")
    with pytest.raises(CheckpointError, match=r"pads texts at their start \(padding_side\)"):
        export(tmp_path / "a", tmp_path / "c", "siglip")
