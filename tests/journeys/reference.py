"""Transformers' results of texts alone, with all heads or some, and tensors of binary replies."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.numpy import load

from tests.journeys.texts import Text
from tests.service import plain

LAYERS, HEADS, HEAD_SIZE, MAX_TOKENS = 6, 12, 32, 256
SEPARATOR = 102
Head = tuple[int, int]


@dataclass(frozen=True)
class Expected:
    """Tokens and tensors of one text, and values derived from its maps."""

    tokens: dict[str, Any]
    """Fields of a reply that describe the tokens."""
    hidden: list[Any]
    maps: Any
    """Maps `[L, N, S, S]`."""

    @property
    def mean(self) -> Any:
        """Mean of the last hidden state."""
        return self.hidden[-1].mean(axis=0)

    @functools.cached_property
    def statistics(self) -> dict[str, Any]:
        """Statistics `[L, N]` by name, from the definitions."""
        ids = self.tokens["token_ids"]
        places = [place for place, token in enumerate(ids) if token == SEPARATOR]
        return plain.statistics(self.maps, places)


class Reference:
    """Default checkpoint in transformers; each text is computed once."""

    def __init__(self, tokenizer: Any, model: Any) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._known: dict[Any, Expected] = {}

    def run(self, text: Text, heads: Sequence[Head] = ()) -> Expected:
        """Return a text's results without some heads."""
        key = (text, tuple(heads))
        if key not in self._known:
            encoding, inputs = self._encoded(text)
            with torch.no_grad(), without(self._model, heads):
                output = self._model(**inputs, output_hidden_states=True, output_attentions=True)
            tokens = {
                "token_ids": encoding["input_ids"],
                "segment_ids": encoding["token_type_ids"],
                "offsets": [list(pair) for pair in encoding["offset_mapping"]],
                "tokens": self._tokenizer.convert_ids_to_tokens(encoding["input_ids"]),
            }
            hidden = [state[0].numpy() for state in output.hidden_states]
            maps = torch.stack(output.attentions)[:, 0].numpy()
            self._known[key] = Expected(tokens, hidden, maps)
        return self._known[key]

    def _encoded(self, text: Text) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a text's encoding, in the form for batches, and the tensors of the model.

        The form for a single pair drops an empty second segment.
        """
        found = self._tokenizer(
            [text if isinstance(text, str) else list(text)],
            truncation=True,
            max_length=MAX_TOKENS,
            return_offsets_mapping=True,
        )
        names = self._tokenizer.model_input_names
        inputs = {name: torch.tensor(found[name]) for name in names}
        return {name: values[0] for name, values in found.items()}, inputs

    def value_products(self, text: Text) -> Any:
        """Return ⟨f_g(x_k), f_h(x_k)⟩ `[L, S, N, N]`, by the model's own projections."""
        values: list[Any] = []
        handles = [
            layer.attention.self.value.register_forward_hook(lambda _, __, out: values.append(out))
            for layer in self._model.encoder.layer
        ]
        with torch.no_grad():
            self._model(**self._encoded(text)[1])
        for handle in handles:
            handle.remove()
        found = []
        for value, layer in zip(values, self._model.encoder.layer, strict=True):
            split = value[0].double().reshape(-1, HEADS, HEAD_SIZE)
            output = layer.attention.output.dense.weight.detach().double()
            added = torch.einsum("snp,onp->sno", split, output.reshape(-1, HEADS, HEAD_SIZE))
            found.append((added @ added.transpose(1, 2)).numpy())
        return np.stack(found)

    def shift(self, text: Text, heads: Sequence[Head]) -> float:
        """Return 1 − cosine of the mean vectors with and without some heads."""
        return plain.turned(self.run(text, heads).mean, self.run(text).mean)


@contextlib.contextmanager
def without(model: Any, heads: Sequence[Head]) -> Iterator[None]:
    """Set the outputs of some heads to zero before the output projection."""

    def hook_for(ablated: list[int]) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> Any:
            context, *rest = output
            split = context.reshape(*context.shape[:2], HEADS, HEAD_SIZE).clone()
            split[:, :, ablated] = 0
            return (split.reshape(context.shape), *rest)

        return hook

    handles = []
    for layer, module in enumerate(model.encoder.layer):
        if ablated := [head for of_layer, head in heads if of_layer == layer]:
            handles.append(module.attention.self.register_forward_hook(hook_for(ablated)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def post(client: httpx.Client, route: str, **body: Any) -> dict[str, Any]:
    """Return a binary reply's tensors and metadata."""
    accept = {"accept": "application/vnd.safetensors"}
    reply = client.post(route, json=body, headers=accept)
    assert reply.status_code == 200, reply.text
    size = int.from_bytes(reply.content[:8], "little")
    metadata = json.loads(reply.content[8 : 8 + size])["__metadata__"]
    return {**load(reply.content), "metadata": metadata}


def close(found: Any, wanted: Any, atol: float = 1e-5) -> None:
    """Assert an absolute tolerance."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)
