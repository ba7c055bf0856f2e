"""Shares of every family and both towers, against hidden states and gradients of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from model.checkpoint import load_checkpoint
from model.decomposition.layers import beginning, decomposed
from model.numerics.attention_pooling import PREFIX, AttentionPooling
from model.numerics.batch import pack
from model.numerics.vector_modules import LayerNorm
from model.packing import PackedBatch
from model.sources.overlay import as_folders
from tests.model.checkpoints import write_checkpoint
from tests.model.families.parity import SIZES, VOCABULARY, model_of, saved
from tests.model.families.picture_parity import SIZES as PICTURES
from tests.model.families.test_encoder_parity import (
    DISTILBERT,
    GEMMA3,
    MODERNBERT,
    QWEN3,
    VERSION_3,
)
from tests.model.tower_checkpoints import clip, save_towers, siglip
from tests.tower_oracle import Side, attributions

SPLIT = {"embedding_size": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", SIZES | SPLIT | {"num_hidden_groups": 2}),
    "bert": ("Bert", SIZES),
    "deberta": ("DebertaV2", SIZES | VERSION_3),
    "distilbert": ("DistilBert", DISTILBERT),
    "electra": ("Electra", SIZES | SPLIT),
    "gemma3": ("Gemma3Text", GEMMA3),
    "gte": ("Gte", SIZES),
    "modernbert": ("ModernBert", MODERNBERT),
    "modernbert-biases": (
        "ModernBert",
        MODERNBERT | {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mpnet": ("MPNet", SIZES),
    "nomic-bert": ("NomicBert", SIZES),
    "qwen3": ("Qwen3", QWEN3),
    "roberta": ("Roberta", SIZES),
}
IDS = torch.randint(3, VOCABULARY, (19,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_shares_sum_to_transformers_hidden_state(name: str, tmp_path: Path) -> None:
    family, fields = MODELS[name]
    reference = model_of(family, **fields)
    encoder = load_checkpoint(saved(reference, tmp_path))
    with torch.no_grad():
        states = reference(IDS[None], output_hidden_states=True).hidden_states
        found = decomposed(encoder, states[0][0])
    scale = states[-1].abs().max().item()
    torch.testing.assert_close(found[:, 0], states[-1][0], atol=1e-5 * scale, rtol=0)
    torch.testing.assert_close(found[:, 1:].sum(dim=1), states[-1][0], atol=1e-5 * scale, rtol=0)
    assert found[:, 1:].norm(dim=-1).mean() > 0.05 * scale, "no share is of any size"


@pytest.mark.parametrize("family", ["CLIPVision", "Dinov2"])
def test_shares_of_pictures_sum_to_transformers(family: str, tmp_path: Path) -> None:
    """CLIP's vision tower has no norm after its last layer."""
    reference = model_of(family, **PICTURES, image_size=28, patch_size=14)
    encoder = load_checkpoint(saved(reference, tmp_path))
    picture = torch.randn(1, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = reference(picture, output_hidden_states=True)
        last = theirs.last_hidden_state[0]
        found = decomposed(encoder, theirs.hidden_states[0][0])
    scale = last.abs().max().item()
    for ours in (found[:, 0], found[:, 1:].sum(dim=1)):
        torch.testing.assert_close(ours, last, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("score", ["additive", "cosine"])
def test_other_scores_and_normalizers_sum_too(score: str, tmp_path: Path) -> None:
    fields = {"attention_score": score, "attention_normalizer": "sparsemax"}
    encoder = load_checkpoint(write_checkpoint(tmp_path / "it", **fields))
    embedded = torch.randn(7, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = decomposed(encoder, embedded)
    torch.testing.assert_close(found[:, 1:].sum(dim=1), found[:, 0], atol=1e-5, rtol=1e-5)


def test_at_the_beginning_each_token_is_its_own() -> None:
    parts = beginning(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert parts.tolist() == [
        [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]],
        [[3.0, 4.0], [0.0, 0.0], [3.0, 4.0]],
    ]


@pytest.mark.slow
def test_shares_of_a_real_models_vectors_sum_to_their_cosine(minilm_checkpoint: Path) -> None:
    """The cosine of two sentences by all-MiniLM-L6-v2 in sentence-transformers."""
    sentences = ("A man is playing a large flute.", "A man is playing the guitar in his room.")
    library = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    expected = library.similarity(*library.encode(sentences)).item()
    encoder = load_checkpoint(minilm_checkpoint)
    pooled = []
    for sentence in sentences:
        ids = library.tokenizer(sentence)["input_ids"]
        batch = PackedBatch.of(pack([(ids, [0] * len(ids))]))
        with torch.inference_mode():
            parts = decomposed(encoder, encoder.embeddings(batch)).mean(dim=0)
        error = (parts[1:].sum(dim=0) - parts[0]).norm() / parts[0].norm()
        assert error < 1e-5
        pooled.append(parts)
    one, other = pooled
    shares = one[1:] @ other[1:].T / one[0].norm() / other[0].norm()
    assert shares.sum().item() == pytest.approx(expected, abs=1e-5)
    assert shares.max() > 0.02


def without_biases(model: Any) -> Any:
    """Set the biases to zero, which gradients leave out and a decomposition shares out."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def in_vector(model: Any, encoder: Any, side: Side) -> Any:
    """Return the share of each token in the features of a vector, `[S, D]`."""
    with torch.no_grad():
        parts = decomposed(encoder, side.states[0].float()).numpy()
    clip_model = model.config.model_type == "clip"
    if not side.picture:
        projection = model.text_projection if clip_model else model.text_model.head
        return parts[-1, 1:] @ projection.weight.detach().numpy().T
    if not clip_model:
        head = {
            PREFIX + name: tensor.numpy().astype(np.float32)
            for name, tensor in model.vision_model.head.state_dict().items()
        }
        return AttentionPooling(encoder.config, head).parts(parts)[1:]
    norm = model.vision_model.post_layernorm
    tensors = {f"norm.{name}": tensor.numpy() for name, tensor in norm.state_dict().items()}
    shares = LayerNorm(dimension=parts.shape[2], eps=norm.eps).shares(parts[0, 1:], tensors)
    return shares @ model.visual_projection.weight.detach().numpy().T


@pytest.mark.parametrize("make", [clip, siglip])
def test_products_of_shares_are_second_order_attributions(make: Any, tmp_path: Path) -> None:
    model = without_biases(make())
    folder = save_towers(model, tmp_path / "whole")
    with as_folders(folder) as folders:
        encoders = {tower: load_checkpoint(path) for tower, path in folders.items()}
    model = model.double()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 90, (1, 9), generator=generator)
    ids[0, -1] = model.config.text_config.eos_token_id
    pixels = torch.randn(1, 3, 28, 28, generator=generator, dtype=torch.float64)
    sides = Side(model, {"input_ids": ids}), Side(model, {"pixel_values": pixels})
    with torch.no_grad():
        vectors = sides[0].vector(), sides[1].vector()
    expected = attributions(sides[0].frozen_shares(), sides[1].frozen_shares(), vectors)
    of_sides = [
        torch.from_numpy(in_vector(model, encoders[tower], side)).double()
        for tower, side in zip(("text", "vision"), sides, strict=True)
    ]
    found = attributions(*of_sides, vectors)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    cosine = torch.cosine_similarity(*vectors, dim=0)
    torch.testing.assert_close(found.sum(), cosine, atol=1e-5, rtol=0)
