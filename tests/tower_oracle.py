"""transformers' CLIP and SigLIP in float64: vectors without some tokens, and shares of tokens.

Notation: S tokens or patches of one side, H hidden size, D features of a vector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn


class Side:
    """One tower on one text or picture, from the states that enter its first layer."""

    def __init__(self, model: Any, inputs: dict[str, Any]) -> None:
        """Compute the first states `[1, S, H]`.

        Args:
            model: `CLIPModel` or `SiglipModel` in float64, with eager attention.
            inputs: `input_ids` or `pixel_values` of one text or picture.

        """
        self.model = model
        self.picture = "pixel_values" in inputs
        self.tower = model.vision_model if self.picture else model.text_model
        with torch.no_grad():
            states = self.tower.embeddings(**inputs)
            if hasattr(self.tower, "pre_layrnorm"):
                states = self.tower.pre_layrnorm(states)
        self.states: Any = states

    def vector(self, states: Any = None, without: Sequence[int] = ()) -> Any:
        """Return the vector `[D]`, not normalised; tokens `without` are masked as keys."""
        states = self.states if states is None else states
        length = states.shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool)
        clip = self.model.config.model_type == "clip"
        if clip and not self.picture:
            allowed = allowed.tril()
        allowed[:, [*without]] = False
        mask = torch.zeros(1, 1, length, length, dtype=states.dtype)
        mask.masked_fill_(~allowed, torch.finfo(states.dtype).min)
        last = self.tower.encoder(inputs_embeds=states, attention_mask=mask).last_hidden_state
        if not self.picture:
            pooled = self.tower.final_layer_norm(last)[:, -1]
            project = self.model.text_projection if clip else self.tower.head
            return project(pooled)[0]
        if clip:
            return self.model.visual_projection(self.tower.post_layernorm(last[:, 0]))[0]
        kept = [n for n in range(length) if n not in without]
        return self.tower.head(self.tower.post_layernorm(last)[:, kept])[0]

    def frozen_shares(self) -> Any:
        """Return the shares of tokens while everything that is not linear is a constant."""
        with frozen():
            return self.products(jacobian(self.vector, self.states))

    def integrated_shares(self, steps: int) -> Any:
        """Return the shares by gradients at `steps` points from zeros to the states.

        Möller et al. 2024 (https://arxiv.org/abs/2408.14153), eq. 4: products of both sides' shares
        are the second-order attributions.
        """
        points = [(n + 0.5) / steps for n in range(steps)]
        return self.products(
            sum(jacobian(self.vector, point * self.states) for point in points) / steps
        )

    def products(self, gradients: Any) -> Any:
        """Return Σ_h gradient · state, `[D, S, H]` → `[S, D]`."""
        return torch.einsum("dsh,sh->sd", gradients, self.states[0])


def jacobian(vector: Callable[[Any], Any], states: Any) -> Any:
    """Return the gradient of each feature of a vector by the states, `[D, S, H]`."""
    leaf = states.detach().requires_grad_()
    features = vector(leaf)
    rows = [torch.autograd.grad(f, leaf, retain_graph=True)[0][0] for f in features]
    return torch.stack(rows)


def attributions(first: Any, second: Any, vectors: tuple[Any, Any]) -> Any:
    """Return the share of each pair of tokens in the cosine, `[S_a, S_b]`."""
    return first @ second.T / vectors[0].norm() / vectors[1].norm()


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Replace softmax, layer norms and activations by linear maps with their current values."""
    softmax = nn.functional.softmax

    def constant(*args: Any, **fields: Any) -> Any:
        return softmax(*args, **fields).detach()

    def norm(self: Any, x: Any) -> Any:
        deviation = torch.sqrt(x.var(dim=-1, keepdim=True, unbiased=False) + self.eps).detach()
        return (x - x.mean(dim=-1, keepdim=True)) / deviation * self.weight + self.bias

    def slope(activation: Callable[..., Any]) -> Callable[..., Any]:
        def linear(self: Any, x: Any) -> Any:
            return x * (activation(self, x) / x).detach()

        return linear

    from transformers.activations import GELUActivation, GELUTanh, QuickGELUActivation

    with contextlib.ExitStack() as stack:
        patch = mock.patch.object
        stack.enter_context(patch(nn.functional, "softmax", constant))
        stack.enter_context(patch(nn.LayerNorm, "forward", norm))
        for kind in (GELUActivation, GELUTanh, QuickGELUActivation):
            stack.enter_context(patch(kind, "forward", slope(kind.forward)))
        yield
