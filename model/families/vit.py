"""ViT (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929) and its descendant DeiT.

DeiT (Touvron et al. 2021, https://arxiv.org/abs/2012.12877) adds a distillation token.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from model.families.family import Family
from model.families.pictures import OUTSIDE, PICTURE_RENAMES, PictureKeys

_SPECIAL = {"vit": ("[CLS]",), "deit": ("[CLS]", "[DIST]")}


class ViTConfig(PictureKeys):
    """Keys of ViT's and DeiT's `config.json`."""

    model_type: Literal["vit", "deit"]

    def _layouts(self) -> dict[str, Any]:
        return self.picture_layouts(_SPECIAL[self.model_type])


VIT = Family(
    config=ViTConfig.read,
    prefix="vit.",
    outside=re.compile(OUTSIDE),
    renames=(
        *PICTURE_RENAMES,
        (r"^embeddings\.distillation_token$", "embeddings.special.1"),
        (r"^encoder\.layer\.(\d+)\.layernorm_before\.", r"layers.\1.attention_norm."),
        (r"^encoder\.layer\.(\d+)\.layernorm_after\.", r"layers.\1.feed_forward_norm."),
        (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.feed_forward.expand."),
        (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.feed_forward.contract."),
    ),
)
DEIT = dataclasses.replace(VIT, prefix="deit.")
