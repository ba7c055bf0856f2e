"""Vectors that each family's layers add, and the effects of replaced head outputs.

The oracle is transformers with hooks, in float32: for outputs of modules, and for all states after
an output projection's input was changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.encoder.layer_parts import parametrized
from tests.model.decomposition.test_encoder import IDS, MODELS
from tests.model.families.parity import saved


class Names(NamedTuple):
    """Suffixes of the names of a family's modules."""

    projection: str
    """Module whose input is the outputs of all heads."""
    attended: str
    """Module whose output is the vectors that heads add."""
    mlp: str
    """Module whose output is the vectors that the feed-forward part adds."""


_BERT = Names("attention.output.dense", "attention.output.dense", "{layer}.output.dense")
_LLAMA = Names("self_attn.o_proj", "self_attn.o_proj", "mlp")
_MODERNBERT = Names("attn.Wo", "attn.Wo", "mlp")
NAMES = {
    "albert": Names("attention.dense", "attention.dense", "ffn_output"),
    "bert": _BERT,
    "deberta": _BERT,
    "distilbert": Names("attention.out_lin", "attention.out_lin", "ffn"),
    "electra": _BERT,
    "gemma3": Names("o_proj", "post_attention_layernorm", "post_feedforward_layernorm"),
    "gte": _LLAMA,
    "modernbert": _MODERNBERT,
    "modernbert-biases": _MODERNBERT,
    "mpnet": Names("attention.attn.o", "attention.attn.o", "{layer}.output.dense"),
    "nomic-bert": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": _BERT,
}
POST_NORM = (
    "albert",
    "bert",
    "deberta",
    "distilbert",
    "electra",
    "gte",
    "mpnet",
    "nomic-bert",
    "roberta",
)
NORMS = {
    "distilbert": ("sa_layer_norm", "output_layer_norm"),
    "albert": ("attention.LayerNorm", "full_layer_layer_norm"),
    "mpnet": ("attention.LayerNorm", "{layer}.output.LayerNorm"),
    "gte": ("post_attention_layernorm", "post_mlp_layernorm"),
    "nomic-bert": ("post_attention_layernorm", "post_mlp_layernorm"),
}
"""Names of both norms in families with a norm after each sum; others are as BERT's."""
_BERT_NORMS = ("attention.output.LayerNorm", "{layer}.output.LayerNorm")


class Reference:
    """Model of transformers, with the inputs and outputs of its layers' modules."""

    def __init__(self, name: str, folder: Path) -> None:
        config, model, fields = MODELS[name]
        self.model = model(config(**fields)).eval()
        self.encoder: Encoder = load_checkpoint(saved(self.model, folder))
        self.layers = self.encoder.config.num_hidden_layers

    def modules(self, end: str) -> list[Any]:
        """Return the modules with this suffix, in the order of the layers, or of shared groups."""
        ends = [end.format(layer=f".{layer}") for layer in range(self.layers)]
        return [
            module
            for name, module in self.model.named_modules()
            if f".{name}".endswith(tuple(e if e.startswith(".") else f".{e}" for e in ends))
        ]

    def module_of(self, end: str, layer: int) -> Any:
        found = self.modules(end)
        return found[layer * len(found) // self.layers]

    def outputs(self, end: str) -> list[Tensor]:
        """Return the output of each layer's module, `[S, …]`."""
        found: list[Tensor] = []
        hooks = [
            module.register_forward_hook(lambda *given: found.append(given[2][0].clone()))
            for module in self.modules(end)
        ]
        self.states()
        for hook in hooks:
            hook.remove()
        assert len(found) == self.layers
        return found

    def states(self, replaced: dict[int, tuple[int, Tensor]] | None = None, end: str = "") -> Any:
        """Return all hidden states `[S, H]`, given layer → head whose output is replaced there."""
        calls = iter(range(self.layers))

        def change(_: Any, given: Sequence[Tensor]) -> Any:
            layer, (context,) = next(calls), given
            if not replaced or layer not in replaced:
                return None
            head, output = replaced[layer]
            count = self.encoder.config.num_attention_heads
            split = context.reshape(*context.shape[:-1], count, -1).clone()
            split[..., head, :] = output
            return (split.reshape(context.shape),)

        hooks = [module.register_forward_pre_hook(change) for module in self.modules(end)] * bool(
            replaced
        )
        with torch.no_grad():
            found = self.model(IDS[None], output_hidden_states=True).hidden_states
        for hook in hooks:
            hook.remove()
        return [state[0] for state in found]


@pytest.fixture(params=NAMES)
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Reference]:
    return request.param, Reference(request.param, tmp_path)


def through(encoder: Encoder, layer: int, states: Tensor, **changed: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of a layer; by default no head's output is changed."""
    config = encoder.config
    mask = torch.ones(config.num_attention_heads)
    patch = torch.zeros(config.num_attention_heads, len(states), config.head_size)
    with torch.no_grad():
        return parametrized(encoder, layer).parts(
            states, changed.get("head_mask", mask), changed.get("patch", patch)
        )


def close(found: Tensor, wanted: Tensor) -> None:
    scale = max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 * scale)


def test_parts_are_what_transformers_modules_give(reference: tuple[str, Reference]) -> None:
    name, model = reference
    states = model.states()
    added = [model.outputs(end) for end in (NAMES[name].attended, NAMES[name].mlp)]
    for layer in range(model.layers):
        _, attended, _, mlp, state = through(model.encoder, layer, states[layer])
        close(attended, added[0][layer])
        close(mlp, added[1][layer])
        close(state, states[layer + 1])
        assert mlp.abs().max() > 0


def test_a_state_is_the_sum_of_what_wrote_it(reference: tuple[str, Reference]) -> None:
    """The reference applies transformers' own norms to the sum of all previous parts."""
    name, model = reference
    states = model.states()
    stream = states[0]
    for layer in range(model.layers):
        _, attended, residual, mlp, state = through(model.encoder, layer, stream)
        if name in POST_NORM:
            ends = NORMS.get(name, _BERT_NORMS)
            first, second = (model.module_of(end, layer) for end in ends)
            with torch.no_grad():
                close(residual, first(stream + attended))
                close(state, second(residual + mlp))
            stream = state
            continue
        close(residual, stream + attended)
        if layer + 1 < model.layers:
            close(state, residual + mlp)
        stream = residual + mlp
    close(state, states[-1])


def test_heads_add_up_to_what_is_attended(reference: tuple[str, Reference]) -> None:
    """Each head alone, plus the bias, if no norm follows them."""
    _, model = reference
    config = model.encoder.config
    states = model.states()[0]
    nothing, every = torch.zeros(config.num_attention_heads), torch.eye(config.num_attention_heads)
    if config.layer.order == "sandwich_norm":
        return
    bias = through(model.encoder, 0, states, head_mask=nothing)[1]
    alone = [through(model.encoder, 0, states, head_mask=mask)[1] - bias for mask in every]
    close(torch.stack(alone).sum(dim=0) + bias, through(model.encoder, 0, states)[1])


def test_replaced_heads_are_what_hooks_replace(reference: tuple[str, Reference]) -> None:
    """One head in each of two layers is replaced; the layers between follow."""
    name, model = reference
    config, states = model.encoder.config, model.states()
    last = model.layers - 1
    shape = (len(IDS), config.head_size)
    generator = torch.Generator().manual_seed(7)
    replaced = {
        layer: (config.num_attention_heads - 1 - layer % 2, torch.randn(shape, generator=generator))
        for layer in (0, last)
    }
    wanted = model.states(replaced, NAMES[name].projection)
    assert (wanted[-1] - states[-1]).abs().max() > 1e-3
    found = states[0]
    for layer in range(model.layers):
        mask = torch.ones(config.num_attention_heads)
        patch = torch.zeros(config.num_attention_heads, *shape)
        if layer in replaced:
            head, output = replaced[layer]
            mask[head], patch[head] = 0, output
        outputs, *_, found = through(model.encoder, layer, found, head_mask=mask, patch=patch)
        if layer in replaced:
            torch.testing.assert_close(outputs[head], output, rtol=0, atol=0)
        close(found, wanted[layer + 1])


@pytest.mark.parametrize("score", ["additive", "bilinear", "cosine"])
def test_other_scores_and_normalizers_are_the_encoders_own(score: str, tmp_path: Path) -> None:
    """The reference is our own encoder, because transformers lacks such scores."""
    from model.numerics.batch import pack
    from model.packing import PackedBatch
    from tests.model.checkpoints import write_checkpoint

    fields = {"attention_score": score, "attention_normalizer": "sparsemax"}
    encoder = load_checkpoint(write_checkpoint(tmp_path / "it", **fields))
    ids = list(range(3, 12))
    with torch.no_grad():
        states = encoder(PackedBatch.of(pack([(ids, [0] * len(ids))]))).hidden_states
    for layer in range(encoder.config.num_hidden_layers):
        close(through(encoder, layer, states[layer])[-1], states[layer + 1])
