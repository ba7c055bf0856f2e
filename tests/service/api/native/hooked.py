"""transformers with hooks on its heads: the oracle of requests that change heads' outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

Change = Callable[[Tensor], Tensor]
"""Function from a head's output `[S, p]`, before the output projection, to its replacement."""
Changes = Mapping[tuple[int, int], Change]
"""Change of each (layer, head)."""


class Hooked:
    """BERT of transformers in float32, one text at a time."""

    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model: Any = AutoModel.from_pretrained(checkpoint).eval()

    def states(self, text: str, changes: Changes | None = None) -> list[Tensor]:
        """Return the hidden states 0 … L, `[S, H]` each."""
        with torch.no_grad(), self._changed(changes or {}):
            found = self.model(**self._inputs(text), output_hidden_states=True)
        return [state[0] for state in found.hidden_states]

    def heads(self, text: str, changes: Changes | None = None) -> dict[tuple[int, int], Tensor]:
        """Return the output of each (layer, head), `[S, p]`, before the output projection."""
        found: dict[tuple[int, int], Tensor] = {}

        def keep(layer: int, head: int) -> Change:
            def kept(output: Tensor) -> Tensor:
                change = (changes or {}).get((layer, head))
                found[layer, head] = output.clone() if change is None else change(output)
                return found[layer, head]

            return kept

        config = self.model.config
        every = {
            (layer, head): keep(layer, head)
            for layer in range(config.num_hidden_layers)
            for head in range(config.num_attention_heads)
        }
        self.states(text, every)
        return found

    def _inputs(self, text: str) -> Any:
        return self._tokenizer(text, return_tensors="pt")

    @contextlib.contextmanager
    def _changed(self, changes: Changes) -> Iterator[None]:
        count = self.model.config.num_attention_heads

        def hook_for(layer: int) -> Any:
            def hook(module: Any, inputs: tuple[Tensor, ...]) -> Any:
                (context,) = inputs
                split = context.reshape(*context.shape[:2], count, -1).clone()
                for (of_layer, head), change in changes.items():
                    if of_layer == layer:
                        split[0, :, head] = change(split[0, :, head])
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
