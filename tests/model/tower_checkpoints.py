"""Small random checkpoints with two towers, as transformers itself writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    PreTrainedModel,
    SiglipConfig,
    SiglipModel,
    SiglipTokenizer,
)

from tests.model.families.parity import randomized
from tests.model.piece_folders import piece_model

TEXT: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "image_size": 28,
    "patch_size": 14,
}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": {
        "do_center_crop": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "SiglipImageProcessor": {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}


def clip(text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> CLIPModel:
    """Return a random CLIP, whose end token is the last of its vocabulary."""
    torch.manual_seed(0)
    size = len(_characters()) + 2
    tokens = {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1}
    config = CLIPConfig(
        text_config=TEXT | tokens | (text or {}),
        vision_config=VISION | (vision or {}),
        projection_dim=18,
    )
    return randomized(CLIPModel(config))


def siglip(text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> SiglipModel:
    """Return a random SigLIP with vectors of 16 features."""
    torch.manual_seed(0)
    tokens = {"vocab_size": 520, "bos_token_id": 1, "eos_token_id": 1, "projection_size": 16}
    return randomized(
        SiglipModel(
            SiglipConfig(
                text_config=TEXT | tokens | (text or {}), vision_config=VISION | (vision or {})
            )
        )
    )


def save_towers(model: PreTrainedModel, folder: Path) -> Path:
    """Write a CLIP or SigLIP, or one of its towers, with a tokenizer and an image processor."""
    model.save_pretrained(folder)
    if model.config.model_type.startswith("clip"):
        write_clip_tokenizer(folder)
    else:
        write_siglip_tokenizer(folder)
    write_processor(folder, model)
    return folder


def write_processor(folder: Path, model: PreTrainedModel) -> None:
    """Write the image processor of a model."""
    vision = getattr(model.config, "vision_config", model.config)
    edge = getattr(vision, "image_size", 28)
    height, width = (edge, edge) if isinstance(edge, int) else edge
    kind = "CLIP" if model.config.model_type.startswith("clip") else "Siglip"
    size = {"shortest_edge": edge} if kind == "CLIP" else {"height": height, "width": width}
    settings = _PROCESSORS[f"{kind}ImageProcessor"] | {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": size,
        "crop_size": {"height": height, "width": width},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def write_clip_tokenizer(folder: Path) -> None:
    """Write a tokenizer of single bytes."""
    tokens = [*_characters(), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)


def write_siglip_tokenizer(folder: Path) -> None:
    """Write a SentencePiece model with the ids of SigLIP's: padding, end and unknown token.

    As in published checkpoints, there is no attention mask, so that padding is attended.
    """
    path = folder / "spiece.model"
    path.write_bytes(piece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    tokenizer = SiglipTokenizer(str(path), model_input_names=["input_ids"])
    tokenizer.save_pretrained(folder)


def _characters() -> list[str]:
    signs = sorted(ByteLevel.alphabet())
    return [*signs, *(f"{sign}</w>" for sign in signs)]
