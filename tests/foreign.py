"""Tiny checkpoints exported as third parties do, by `torch.onnx` only."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from model.artifact.manifest import Artifact
from model.export.foreign_import import export_foreign
from model.sources.foreign_exports import find_graph
from tests.model.checkpoints import edit_json, write_checkpoint
from tests.model.sentences import write_modules

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POOLING = {"word_embedding_dimension": 12, "pooling_mode_cls_token": True}


class Wrapped(nn.Module):
    """Encoder with positional inputs and a tuple of outputs."""

    def __init__(
        self, folder: Path, inputs: Sequence[str], *, pooled: bool, leaks: bool, maps: bool
    ) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.inputs, self.pooled, self.leaks, self.maps = inputs, pooled, leaks, maps

    def forward(self, *values: Tensor) -> Any:
        """The last hidden state `[B, S, H]`, and with `pooled` a vector a text before it.

        With `maps` the attention weights `[B, N, S, S]` of each layer follow.
        """
        given = dict(zip(self.inputs, values, strict=True))
        if self.leaks:
            given["attention_mask"] = torch.ones_like(given["attention_mask"])
        output = self.encoder(**given, output_attentions=self.maps)
        hidden = output.last_hidden_state
        if self.maps:
            return hidden, *output.attentions
        return (hidden.mean(dim=1), hidden) if self.pooled else hidden


def export_graph(
    checkpoint: Path,
    path: Path,
    inputs: Sequence[str] = INPUTS,
    outputs: Sequence[str] = ("last_hidden_state",),
    *,
    leaks: bool = False,
    maps: Sequence[str] = (),
) -> Path:
    """Export a checkpoint; two outputs are a vector a text, then the hidden state.

    `maps` are the names of the attention weights, a layer each, after the hidden state.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
    examples = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    values = tuple(examples.get(name, torch.zeros_like(ids)) for name in inputs)
    axes = {name: {0: "batch", 1: "sequence"} for name in inputs}
    pooled = len(outputs) > 1
    module = Wrapped(checkpoint, inputs, pooled=pooled, leaks=leaks, maps=bool(maps))
    square = {name: {0: "batch", 2: "sequence", 3: "sequence"} for name in maps}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            values,
            str(path),
            dynamo=False,
            input_names=list(inputs),
            output_names=[*outputs, *maps],
            dynamic_axes=axes | square | {outputs[-1]: {0: "batch", 1: "sequence"}},
        )
    return path


def write_foreign(folder: Path, place: str = "onnx/model.onnx", **export: Any) -> Path:
    """A tiny random BERT, sentence-transformers' files, and its graph instead of its weights.

    Its whole checkpoint is beside it: see `checkpoint_of`.
    """
    whole = write_checkpoint(checkpoint_of(folder), seed=3)
    write_modules(whole, "Transformer", "Pooling", "Normalize")
    edit_json(whole / "1_Pooling" / "config.json", **POOLING)
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    export_graph(whole, folder / place, **export)
    return folder


def checkpoint_of(folder: Path) -> Path:
    """Return the checkpoint from which a folder of `write_foreign` was exported."""
    return folder.with_name(f"{folder.name}-whole")


def exported_from(folder: Path) -> Artifact:
    """Export a foreign folder, and return the artifact beside it."""
    graph = find_graph(folder)
    assert graph is not None
    return export_foreign(graph, folder.with_name(f"{folder.name}-artifact"), "somebody/model")
