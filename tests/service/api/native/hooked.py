"""transformers with hooks on its heads: the oracle of requests that ablate heads."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

Heads = Collection[tuple[int, int]]
"""Layer and index of each head."""


class Hooked:
    """BERT of transformers in float32, one text at a time."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model: Any = AutoModel.from_pretrained(
            checkpoint, attn_implementation="eager", dtype=torch.float32
        ).eval()

    def output(self, text: str, ablated: Heads = (), masked: Collection[int] = ()) -> Any:
        """Return states and maps, with some heads' outputs set to 0 and some tokens masked."""
        inputs = self.tokenizer(text, return_tensors="pt")
        inputs["attention_mask"][0, list(masked)] = 0
        with torch.no_grad(), self._without(ablated):
            return self.model(**inputs, output_hidden_states=True, output_attentions=True)

    def states(self, text: str, ablated: Heads = ()) -> list[Tensor]:
        """Return the hidden states 0 … L, `[S, H]` each."""
        return [state[0] for state in self.output(text, ablated).hidden_states]

    @contextlib.contextmanager
    def _without(self, ablated: Heads) -> Iterator[None]:
        count = self.model.config.num_attention_heads

        def hook_for(layer: int) -> Any:
            def hook(module: Any, inputs: tuple[Tensor, ...]) -> Any:
                (context,) = inputs
                split = context.reshape(*context.shape[:2], count, -1).clone()
                for of_layer, head in ablated:
                    if of_layer == layer:
                        split[0, :, head] = 0
                return (split.reshape(context.shape),)

            return hook

        handles = [
            # the output projection takes the outputs of all heads, one after another
            module.attention.output.dense.register_forward_pre_hook(hook_for(layer))
            for layer, module in enumerate(self.model.encoder.layer)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
