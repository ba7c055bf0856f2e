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
    tasks: Sequence[tuple[Matrices, float]], layout: AdapterLayout, source: str
) -> Matrices:
    """Join PEFT's matrices of single tasks; a map that a task does not adapt gets zeros.

    Args:
        tasks: matrices of each adapter, and its scale. They are `[r, d]` and `[p, r]`, or `[r, V]`
            and `[H, r]` for a table.
        layout: number of the adapters, and the largest rank, to which the others are padded.
        source: name of the checkpoint in error messages.

    Raises:
        CheckpointError: a map has one matrix of two, or matrices that do not fit one another.

    """
    joined: Matrices = {}
    for adapter, (matrices, scale) in enumerate(tasks):
        for name, pair in matrices.items():
            if pair.keys() != {"A", "B"} or len(pair["A"]) != pair["B"].shape[-1]:
                raise CheckpointError(f"{source}: the adapter of {name} lacks a matrix of A and B")
            rank = len(pair["A"])
            down = torch.zeros(layout.count, layout.rank, pair["A"].shape[-1])
            up = torch.zeros(layout.count, len(pair["B"]), layout.rank)
            own = joined.setdefault(name, {"A": down, "B": up})
            if own["A"].shape != down.shape or own["B"].shape != up.shape or rank > layout.rank:
                raise CheckpointError(f"{source}: the adapters of {name} differ in their sizes")
            own["A"][adapter, :rank] = pair["A"]
            own["B"][adapter, :, :rank] = scale * pair["B"]
    for table in set(_TABLES) & joined.keys():
        joined[table] = {side: own.transpose(1, 2) for side, own in joined[table].items()}
    return joined


def with_zeros(
    matrices: Matrices, tensors: Mapping[str, Tensor], layout: AdapterLayout
) -> Matrices:
    """Return matrices of every map of an encoder: zeros for maps that no task adapts.

    Args:
        matrices: from `stacked`.
        tensors: the encoder's other parameters.
        layout: number and rank of the adapters.

    """
    whole = dict(matrices)
    for key, weight in tensors.items():
        name = key.removesuffix(".weight")
        is_map = name in _TABLES or (name.startswith("layers.") and weight.ndim == 2)
        if name == key or not is_map or name in whole:
            continue
        outputs, inputs = weight.shape
        k, r = layout.count, layout.rank
        shapes = (
            ((k, outputs, r), (k, r, inputs))
            if name in _TABLES
            else (
                (k, r, inputs),
                (k, outputs, r),
            )
        )
        whole[name] = {side: torch.zeros(shape) for side, shape in zip("AB", shapes, strict=True)}
    return whole


def adapter_parameters(
    config: EncoderConfig, matrices: Matrices, tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    """Return the parameters of an encoder with adapters.

    The table of token types gets a row for each adapter after its only row.

    Args:
        config: config of the encoder.
        matrices: low-rank matrices of all adapters, scaled.
        tensors: all other parameters.
        source: name of the checkpoint in error messages.

    Raises:
        CheckpointError: matrices do not have the number of adapters or the rank of the config.

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
    return {
        f"{prefix}.down.weight": down.contiguous(),
        f"{prefix}.up.weight": up.contiguous(),
    }
