"""DINOv2 (Oquab et al. 2023, https://arxiv.org/abs/2304.07193), also with register tokens.

Registers: Darcet et al. 2023, https://arxiv.org/abs/2309.16588. They have no positions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from model.config.encoder import EncoderConfig, LayerLayout
from model.families.family import Family, split_together
from model.families.pictures import OUTSIDE, PICTURE_RENAMES, PictureKeys, Size

_PATCH = {"dinov2": 14, "dinov2_with_registers": 16}
"""`model_type` → default edge of a patch in pixels."""


class Dinov2Config(PictureKeys):
    """DINOv2's keys of `config.json`, with transformers' defaults."""

    model_type: Literal["dinov2", "dinov2_with_registers"]
    patch_size: Size
    layer_norm_eps: float = Field(gt=0, default=1e-6)
    mlp_ratio: float = Field(gt=0, default=4)
    use_swiglu_ffn: bool = False
    num_register_tokens: int = Field(ge=0, default=4)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> EncoderConfig:
        """Return the encoder of a DINOv2 checkpoint."""
        return super().read({"patch_size": _PATCH.get(str(fields.get("model_type"))), **fields})

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


DINOV2 = Family(
    config=Dinov2Config.read,
    prefix="dinov2.",
    outside=re.compile(OUTSIDE),
    renames=(
        *PICTURE_RENAMES,
        (r"^embeddings\.register_tokens$", "embeddings.special.1"),
        (r"^encoder\.layer\.(\d+)\.norm1\.", r"layers.\1.attention_norm."),
        (r"^encoder\.layer\.(\d+)\.norm2\.", r"layers.\1.feed_forward_norm."),
        (r"^encoder\.layer\.(\d+)\.mlp\.fc1\.", r"layers.\1.feed_forward.expand."),
        (r"^encoder\.layer\.(\d+)\.mlp\.weights_in\.", r"layers.\1.feed_forward.together."),
        (r"^encoder\.layer\.(\d+)\.mlp\.(fc2|weights_out)\.", r"layers.\1.feed_forward.contract."),
        (r"^encoder\.layer\.(\d+)\.layer_scale1\.lambda1$", r"layers.\1.attention.output.scale"),
        (
            r"^encoder\.layer\.(\d+)\.layer_scale2\.lambda1$",
            r"layers.\1.feed_forward.contract.scale",
        ),
    ),
    convert=split_together,
)
DINOV2_WITH_REGISTERS = dataclasses.replace(
    DINOV2, prefix="dinov2_with_registers.", antialiased_positions=True
)
