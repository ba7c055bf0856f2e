"""Merging of a low-rank adapter into an encoder's layers."""

from __future__ import annotations

import torch

from model.adapters import LowRank
from model.checkpoint import build_encoder
from model.encoder.encoder import Encoder


def with_merged_layers(encoder: Encoder, adapter: int) -> Encoder:
    """Return an encoder with an adapter merged into its layers.

    Each linear map W of its layers is W + B_k A_k. Its embeddings stay without the adapter, as the
    caller gives the layers their input.

    Args:
        encoder: an encoder with adapters.
        adapter: number k of the adapter, 1 … K.

    """
    config = encoder.config.model_copy(update={"adapters": None})
    state = {key: tensor for key, tensor in encoder.state_dict().items() if "adapters." not in key}
    with torch.inference_mode(mode=False), torch.no_grad():
        for path, module in encoder.layers.named_modules(prefix="layers"):
            if isinstance(module, LowRank):
                key = path.replace("adapters.", "") + ".weight"
                state[key] = state[key] + module.matrix(adapter)
        return build_encoder(config, state, source=f"adapter {adapter}")
