"""Keys that the families of picture encoders share, and the layouts that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from model.config.encoder import AttentionLayout, EmbeddingLayout, LayerLayout, PatchLayout
from model.families.keys import SharedKeys
from model.families.rotary import LONGEST
from model.images.processing import PREPROCESSOR, PROCESSOR, read_processing

PICTURE_TYPES = frozenset(
    {
        *("vit", "deit", "dinov2", "dinov2_with_registers"),
        *("clip_vision_model", "siglip_vision_model"),
    }
)
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
    hidden_size: int = Field(gt=0, default=768)
    num_hidden_layers: int = Field(gt=0, default=12)
    num_attention_heads: int = Field(gt=0, default=12)
    intermediate_size: int = Field(gt=0, default=3072)
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


PICTURE_RENAMES = (
    (r"^embeddings\.cls_token$", "embeddings.special.0"),
    (r"^embeddings\.patch_embeddings\.projection\.", "embeddings.patch."),
    (r"^embeddings\.position_embeddings$", "embeddings.position.weight"),
    (r"^encoder\.layer\.(\d+)\.attention\.attention\.", r"layers.\1.attention."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attention.output."),
    (r"^layernorm\.", "final_norm."),
)
"""Keys of picture encoders in transformers → keys in `model.encoder.picture_tensors`."""
OUTSIDE = (
    r"^(pooler|classifier|cls_classifier|distillation_classifier|decoder)\."
    r"|^embeddings\.mask_token$"
)
"""Keys of picture encoders outside the encoder: poolers, task heads, and masks of training."""
