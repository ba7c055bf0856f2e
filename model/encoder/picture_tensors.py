"""Parameters of a picture encoder from the tensors of a checkpoint.

Beside the encoder's own keys, a checkpoint has `embeddings.special.0`, `.1`, … (vectors of the
special tokens), `embeddings.patch.bias`, the patches' weight `[H, C, P, P]` of a convolution, a
position table for the trained grid, and with LayerScale (Touvron et al. 2021,
https://arxiv.org/abs/2103.17239) `….scale` `[H]` of a map's output.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from model.config.encoder import EncoderConfig, PatchLayout
from model.errors import CheckpointError
from model.families.family import WORDS

_PATCH, _BIAS, _POSITION = (
    "embeddings.patch.weight",
    "embeddings.patch.bias",
    "embeddings.position.weight",
)
_SPECIAL, _SCALE = "embeddings.special.", ".scale"


def picture_parameters(
    config: EncoderConfig,
    patches: PatchLayout,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    antialias: bool,
) -> dict[str, Tensor]:
    """Return the parameters of a picture encoder, by its own keys.

    `antialias` is for the interpolation of the position table.
    """
    _check_features(config.hidden_size, tensors, source)
    special = [key for key in sorted(tensors) if key.startswith(_SPECIAL)]
    apart = {*special, _BIAS, *(key for key in tensors if key.endswith(_SCALE))}
    parameters = {
        key: _scaled(tensor, tensors.get(key.rpartition(".")[0] + _SCALE))
        for key, tensor in tensors.items()
        if key not in apart
    }
    if _PATCH in parameters:
        parameters[_PATCH] = parameters[_PATCH].flatten(1)
        bias = tensors.get(_BIAS, torch.zeros(config.hidden_size))
        rows = (bias, *(tensors[key] for key in special))
        parameters[WORDS] = torch.cat([own.float().reshape(-1, config.hidden_size) for own in rows])
    if _POSITION in parameters:
        table = parameters[_POSITION].float().flatten(0, -2)
        parameters[_POSITION] = _positions(patches, table, source, antialias=antialias)
    return parameters


def _check_features(size: int, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise an error for a tensor that cannot be combined with others of `size` features."""
    for key, tensor in sorted(tensors.items()):
        features = size
        if key == _POSITION or key.startswith(_SPECIAL):
            features = tensor.shape[-1] if tensor.dim() else 1
        elif key == _BIAS or key.endswith(_SCALE):
            features = tensor.numel()
        if features != size:
            raise CheckpointError(
                f"{source} does not fit its config: {key} has {features} features instead of {size}"
            )


def _scaled(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """Return a map's weight or bias with each output feature multiplied by a scale `[H]`."""
    if scale is None:
        return tensor
    if len(tensor) != len(scale):  # the weight's shape is reported when it is loaded
        return tensor
    return tensor.float() * scale.float().reshape(-1, *[1] * (tensor.dim() - 1))


def _positions(patches: PatchLayout, table: Tensor, source: str, *, antialias: bool) -> Tensor:
    """Return the position table `[S, H]` of special tokens and patches, zeros without a position.

    A table for another grid is interpolated as in transformers: bicubic, without aligned corners.
    In float64, so that processors agree on the result. The table is `[k + trained patches, H]`,
    after k positions of the first special tokens.
    """
    rows, columns = patches.trained_grid
    specials, own = len(patches.special_tokens), len(table) - rows * columns
    if not 0 <= own <= specials:
        raise CheckpointError(
            f"{source} does not fit its config: the position table has {len(table)} rows, and "
            f"image_size gives {rows} × {columns} patches and {specials} special tokens"
        )
    first, grid = table[:own], table[own:]
    if (patches.rows, patches.columns) != patches.trained_grid:
        if rows != columns:
            raise CheckpointError(
                f"{source}: its position table is of {rows} × {columns} patches, and only square "
                "tables are interpolated: export it with --image-size as its image_size"
            )
        picture = grid.double().reshape(1, rows, columns, -1).permute(0, 3, 1, 2)
        size = (patches.rows, patches.columns)
        resized = functional.interpolate(
            picture, size=size, mode="bicubic", align_corners=False, antialias=antialias
        )
        grid = resized.float().permute(0, 2, 3, 1).flatten(0, 2)
    return torch.cat((first, first.new_zeros(specials - own, table.shape[1]), grid))
