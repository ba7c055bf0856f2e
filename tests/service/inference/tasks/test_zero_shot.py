"""Texts and logits of labels that a request names."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import SiglipConfig, SiglipModel

from model.artifact.manifest import DualConfig
from service.errors import Unprocessable
from service.inference.tasks.zero_shot import label_logits, label_texts
from tests.model.tower_checkpoints import TEXT, VISION


def test_a_label_takes_its_place_in_the_template() -> None:
    assert label_texts(["cat", "{}"], None) == ["This is a photo of cat.", "This is a photo of {}."]
    assert label_texts(["cat"], "{} {0}") == ["cat {0}"]
    for template in ("", "a photo", "{} and {}"):
        with pytest.raises(Unprocessable, match=r"template: put \{\} once"):
            label_texts(["cat"], template)


def test_logits_are_transformers() -> None:
    """Of pictures and texts whose vectors are given; scale and bias are not 1 and 0."""
    torch.manual_seed(0)
    model = SiglipModel(
        SiglipConfig(text_config=TEXT | {"projection_size": 16}, vision_config=VISION)
    )
    with torch.no_grad():
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-0.7)
        found = model(torch.randint(3, 9, (4, 6)), torch.randn(2, 3, 28, 28))
    dual = DualConfig(kind="siglip", logit_scale=np.exp(1.3), logit_bias=-0.7, vision_sha256="")
    logits = label_logits(found.image_embeds.numpy(), found.text_embeds.numpy(), dual)
    np.testing.assert_allclose(logits, found.logits_per_image.numpy(), atol=1e-5)
