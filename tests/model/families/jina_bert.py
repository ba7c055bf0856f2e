"""JinaBERT by torch's own modules, from its paper and its published keys.

transformers has no such class. Günther et al. 2023, section 3 (https://arxiv.org/abs/2310.19923):
BERT's layers, with symmetric linear biases by distance (ALiBi) in place of positions, and a gated
feed-forward.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

_NAMES = {
    "attention.out_proj": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "gated": "mlp.gated_layers",
    "contract": "mlp.wo",
    "output_norm": "mlp.layernorm",
}
"""Names of a layer's modules → the published ones."""


class JinaBert(nn.Module):
    """JinaBERT with transformers' interface, as far as the tests of parity need it."""

    def __init__(self, sizes: dict[str, Any], feed_forward: str = "geglu") -> None:
        super().__init__()
        h, i, self.heads = (
            sizes["hidden_size"],
            sizes["intermediate_size"],
            sizes["num_attention_heads"],
        )
        self.config = {
            "model_type": "bert",
            "position_embedding_type": "alibi",
            "layer_norm_eps": 1e-12,
            **sizes,
            "feed_forward_type": feed_forward,
        }
        self.words, self.segments = nn.Embedding(sizes["vocab_size"], h), nn.Embedding(2, h)
        self.norm = nn.LayerNorm(h, eps=1e-12)
        self.activation = nn.GELU() if feed_forward == "geglu" else nn.ReLU()
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": nn.MultiheadAttention(h, self.heads, batch_first=True),
                    "attention_norm": nn.LayerNorm(h, eps=1e-12),
                    "gated": nn.Linear(h, 2 * i, bias=False),
                    "contract": nn.Linear(i, h),
                    "output_norm": nn.LayerNorm(h, eps=1e-12),
                }
            )
            for _ in range(sizes["num_hidden_layers"])
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: bool) -> Any:
        """Return the states and weights of texts `[B, S]`."""
        length = input_ids.shape[1]
        hidden = self.norm(self.words(input_ids) + self.segments.weight[0])
        slopes = build_alibi_tensor(torch.ones(1, 2), self.heads, torch.float32)[:, 0, 1]
        places = torch.arange(length)
        bias = -slopes[:, None, None] * (places[:, None] - places).abs()
        bias = bias.repeat(len(input_ids), 1, 1)
        states, maps = [hidden], []
        for layer in self.layers:
            attended, weights = layer["attention"](
                *[hidden] * 3,
                attn_mask=bias,
                key_padding_mask=torch.zeros(attention_mask.shape).masked_fill(
                    attention_mask == 0, -torch.inf
                ),
                average_attn_weights=False,
            )
            hidden = layer["attention_norm"](hidden + attended)
            gate, other = layer["gated"](hidden).chunk(2, dim=-1)
            hidden = layer["output_norm"](hidden + layer["contract"](self.activation(gate) * other))
            states.append(hidden)
            maps.append(weights)
        return _Output(hidden_states=tuple(states), attentions=tuple(maps))

    def set_attn_implementation(self, _: str) -> None:
        """Do nothing: there is one implementation."""

    def save_pretrained(self, folder: Path) -> None:
        """Write the config and the weights with the published keys."""
        tensors = {
            "embeddings.word_embeddings.weight": self.words.weight,
            "embeddings.token_type_embeddings.weight": self.segments.weight,
            "embeddings.LayerNorm.weight": self.norm.weight,
            "embeddings.LayerNorm.bias": self.norm.bias,
            "pooler.dense.weight": torch.ones(2),
        }
        for number, layer in enumerate(self.layers):
            place = f"encoder.layer.{number}."
            for name, tensor in layer.state_dict().items():
                if ".in_proj_" in name:
                    kind = name.rpartition("_")[2]
                    for role, part in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                        tensors[f"{place}attention.self.{role}.{kind}"] = part.contiguous()
                else:
                    module, _, kind = name.rpartition(".")
                    tensors[f"{place}{_NAMES[module]}.{kind}"] = tensor
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))


class _Output(SimpleNamespace):
    hidden_states: tuple[Tensor, ...]

    def __getitem__(self, index: int) -> Tensor:
        """Return the last state, as transformers' outputs do at index 0."""
        return self.hidden_states[-1 - index]
