"""Encoders of pictures: ViT, DeiT and DINOv2. `model.families.towers` has CLIP's and SigLIP's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from model.config.encoder import (
    AttentionLayout,
    EmbeddingLayout,
    EncoderConfig,
    LayerLayout,
    PatchLayout,
)
from model.families.family import Family
from model.families.keys import Count, SharedKeys
from model.families.rotary import LONGEST
from model.images.processing import PREPROCESSOR, PROCESSOR, PROCESSOR_OF, read_processing

PICTURE_TYPES = frozenset(PROCESSOR_OF) - {"clip", "siglip"}
"""`model_type`s of encoders that read pictures alone, and have no tokenizer."""
PROCESSED_SIZE = "processed_size"
"""Key of the height and width of pictures in pixels, in place of `image_size`; the registry adds it
to the content of a `config.json`."""


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_pair)]
"""Height and width in pixels, or one number for both."""


class PictureKeys(SharedKeys):
    """Keys of a picture encoder's `config.json`, with transformers' defaults."""

    vocab_size: int = 1
    hidden_size: Count = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: Count = 3072
    attention_score: Literal["scaled_dot_product"] = "scaled_dot_product"
    image_size: Size = (224, 224)
    patch_size: Size = (16, 16)
    num_channels: Literal[3] = 3
    qkv_bias: bool = True
    processed_size: Size | None = None

    @model_validator(mode="after")
    def _can_be_cut(self) -> Self:
        height, width = self.patch_size
        if height != width:
            raise ValueError(f"patch_size: patches of {height} × {width} pixels are not square")
        if 0 in (*self.trained_grid, *self.grid):
            raise ValueError(f"a picture is smaller than a patch of {height} pixels")
        tokens = self.grid[0] * self.grid[1]
        if tokens > LONGEST:
            raise ValueError(
                f"a picture has {tokens} patches; at most {LONGEST} are supported: export with "
                "a smaller --image-size"
            )
        return self

    @property
    def trained_grid(self) -> tuple[int, int]:
        """Rows and columns of the checkpoint's position table."""
        return self._cut(self.image_size)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a picture's patches."""
        return self._cut(self.processed_size or self.image_size)

    def _cut(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the number of whole patches from top to bottom and from left to right."""
        height, width = size
        return height // self.patch_size[0], width // self.patch_size[1]

    def picture_layouts(self, special_tokens: Sequence[str]) -> dict[str, Any]:
        """Return the fields of an `EncoderConfig` that follow from the keys."""
        rows, columns = self.grid
        patches = PatchLayout(
            size=self.patch_size[0],
            rows=rows,
            columns=columns,
            special_tokens=tuple(special_tokens),
            trained_grid=self.trained_grid,
        )
        return {
            "vocab_size": 1 + len(special_tokens),
            "type_vocab_size": 0,
            "pad_token_id": 0,
            "max_position_embeddings": patches.tokens,
            "embeddings": EmbeddingLayout(norm=False, patches=patches),
            "attention": AttentionLayout(bias=self.qkv_bias),
            "layer": LayerLayout(order="pre_norm"),
        }


def processed_size(folder: Path) -> tuple[int, int] | None:
    """Return height and width of a checkpoint's processed pictures; None without its file."""
    has_file = any((folder / name).is_file() for name in (PROCESSOR, PREPROCESSOR))
    return read_processing(folder).size if has_file else None


class ViTConfig(PictureKeys):
    """Keys of the `config.json` of ViT (Dosovitskiy et al. 2021) and of its descendant DeiT.

    https://arxiv.org/abs/2010.11929. DeiT (Touvron et al. 2021, https://arxiv.org/abs/2012.12877)
    adds a distillation token.
    """

    def _layouts(self) -> dict[str, Any]:
        distilled = self.model_type == "deit"
        return self.picture_layouts(("[CLS]", "[DIST]") if distilled else ("[CLS]",))


_PATCH = {"dinov2": 14, "dinov2_with_registers": 16}
"""`model_type` → default edge of a patch in pixels."""


class Dinov2Config(PictureKeys):
    """Keys of the `config.json` of DINOv2 (Oquab et al. 2023), also with register tokens.

    https://arxiv.org/abs/2304.07193. Registers (Darcet et al. 2023,
    https://arxiv.org/abs/2309.16588) have no positions.
    """

    patch_size: Size
    layer_norm_eps: float = Field(gt=0, default=1e-6)
    mlp_ratio: float = Field(gt=0, default=4)
    use_swiglu_ffn: bool = False
    num_register_tokens: int = Field(ge=0, default=4)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a DINOv2 checkpoint."""
        return super().read({"patch_size": _PATCH[fields["model_type"]], **fields})

    def _layouts(self) -> dict[str, Any]:
        registers = self.num_register_tokens if self.model_type == "dinov2_with_registers" else 0
        special = ("[CLS]", *(f"[REG {number}]" for number in range(1, registers + 1)))
        size = int(self.hidden_size * self.mlp_ratio)
        layouts = {"intermediate_size": size} | self.picture_layouts(special)
        if self.use_swiglu_ffn:
            layouts |= {
                "intermediate_size": (int(size * 2 / 3) + 7) // 8 * 8,
                "hidden_act": "silu",
                "layer": LayerLayout(order="pre_norm", gated=True),
            }
        return layouts


_DINOV2 = Family(
    Dinov2Config.read,
    "dinov2.",
    renames=(
        (r"\.norm2\.", ".feed_forward_norm."),
        (r"\.layer_scale1\.lambda1$", ".attention.output.scale"),
        (r"\.layer_scale2\.lambda1$", ".feed_forward.contract.scale"),
    ),
)
FAMILIES = {
    "deit": Family(ViTConfig.read, "deit."),
    "dinov2": _DINOV2,
    "dinov2_with_registers": dataclasses.replace(
        _DINOV2, prefix="dinov2_with_registers.", antialiased_positions=True
    ),
    "vit": Family(ViTConfig.read, "vit."),
}
