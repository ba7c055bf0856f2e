"""Conversion of a checkpoint's low-rank matrices to the parameters of `model.low_rank`.

Notation: K adapters, r their rank, d and p sizes of a map's input and output, V words, H features.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from model.config.encoder import AdapterLayout, EncoderConfig
from model.errors import CheckpointError

Matrices = dict[str, dict[str, Tensor]]
"""Map → its matrices "A" and "B": `[K, r, d]` and `[K, p, r]` for a linear map, `[K, V, r]` and
`[K, r, H]` for a table of embeddings."""
_LOW_RANK = re.compile(r"^(.+)\.lora_(?:embedding_)?([AB])(?:\.weight)?$")
_TABLES = ("embeddings.word", "embeddings.token_type")
_ROLES = ("query", "key", "value")


def low_rank_matrices(tensors: Mapping[str, Tensor]) -> tuple[Matrices, dict[str, Tensor]]:
    """Separate low-rank matrices, by their map, from all other tensors."""
    matrices: Matrices = {}
    others = {}
    for name, tensor in tensors.items():
        if match := _LOW_RANK.match(name):
            matrices.setdefault(match[1], {})[match[2]] = tensor.to(torch.float32)
        else:
            others[name] = tensor
    return matrices, others


def stacked(
    tasks: Sequence[tuple[Matrices, float]],
    tensors: Mapping[str, Tensor],
    layout: AdapterLayout,
    source: str,
) -> Matrices:
    """Join PEFT's matrices of single tasks; a map that a task does not adapt gets zeros.

    `tasks` are the matrices of each adapter, and its scale: `[r, d]` and `[p, r]`, or `[r, V]` and
    `[H, r]` for a table. Smaller ranks are padded to the layout's.
    """
    joined: Matrices = {}
    for key, weight in tensors.items():
        name = key.removesuffix(".weight")
        if name in _TABLES or (name != key and name.startswith("layers.") and weight.ndim == 2):
            outputs, inputs = reversed(weight.shape) if name in _TABLES else weight.shape
            down = torch.zeros(layout.count, layout.rank, inputs)
            joined[name] = {"A": down, "B": torch.zeros(layout.count, outputs, layout.rank)}
    for adapter, (matrices, scale) in enumerate(tasks):
        for name, pair in matrices.items():
            if pair.keys() != {"A", "B"} or len(pair["A"]) != pair["B"].shape[-1]:
                raise CheckpointError(f"{source}: the adapter of {name} lacks a matrix of A and B")
            own, (rank, inputs), outputs = joined.get(name), pair["A"].shape, len(pair["B"])
            fits = own and (own["A"].shape[2], own["B"].shape[1]) == (inputs, outputs)
            if own is None or not fits or rank > layout.rank:
                raise CheckpointError(f"{source}: the adapter of {name} does not fit the encoder")
            own["A"][adapter, :rank] = pair["A"]
            own["B"][adapter, :, :rank] = scale * pair["B"]
    for table in set(_TABLES) & joined.keys():
        joined[table] = {side: own.transpose(1, 2) for side, own in joined[table].items()}
    return joined


def adapter_parameters(
    config: EncoderConfig, matrices: Matrices, tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Return the parameters of an encoder with adapters.

    The table of token types gets a row for each adapter after its only row.
    """
    layout = config.adapters
    if layout is None:
        raise CheckpointError(f"{source} has adapters, which its config.json does not name")
    parameters = dict(tensors)
    for name, pair in matrices.items():
        _check(name, pair, layout, source)
        down, up = pair["A"], pair["B"]
        if name in _TABLES:
            down = down.transpose(1, 2)  # [K, r, V]
        else:
            up = up.transpose(1, 2)  # [K, r, p]
        if name == "embeddings.token_type":
            table = parameters[key := f"{name}.weight"].to(torch.float32)
            rows = (down.transpose(1, 2) @ up)[:, 0]
            parameters[key] = torch.cat((table, table + rows))
            continue
        flat = down.flatten(0, 1), up.flatten(0, 1)  # [K · r, d], [K · r, p]
        if name == "embeddings.word":
            parameters |= _named("embeddings.low_rank", flat[0].T, flat[1].T)
            continue
        parent, _, role = name.rpartition(".")
        if role != "together":
            parameters |= _named(f"{parent}.low_rank.{role}", flat[0], flat[1].T)
            continue
        for own, part in zip(_ROLES, flat[1].chunk(len(_ROLES), dim=1), strict=True):
            parameters |= _named(f"{parent}.low_rank.{own}", flat[0].clone(), part.T)
    return parameters


def _check(name: str, pair: Mapping[str, Tensor], layout: AdapterLayout, source: str) -> None:
    table = name in _TABLES
    axes = {"A": 2 if table else 1, "B": 1 if table else 2}
    for side, axis in axes.items():
        shape = tuple(pair[side].shape) if side in pair else ()
        if len(shape) != 3 or shape[0] != layout.count or shape[axis] != layout.rank:
            raise CheckpointError(
                f"{source}: the matrix {side} of the adapters of {name} has the shape {shape}, for "
                f"{layout.count} adapters of rank {layout.rank}"
            )


def _named(prefix: str, down: Tensor, up: Tensor) -> dict[str, Tensor]:
    return {f"{prefix}.down.weight": down.contiguous(), f"{prefix}.up.weight": up.contiguous()}
