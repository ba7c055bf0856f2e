"""Scores of labels that a request names, by a model with two towers such as CLIP.

Notation: B pictures, C labels, D features of a vector.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.artifact.manifest import DualConfig
from service.engines.contract import Floats
from service.errors import Unprocessable
from service.inference.core import Inference
from service.inference.encoding import EncodeOptions, PreparedTexts
from service.scheduler.outputs import requested

TEMPLATE = "This is a photo of {}."
"""Default text of a label, as in transformers' pipeline `zero-shot-image-classification`."""
PLACE = "{}"
"""Place of a label in a template."""


@dataclass(frozen=True)
class ZeroShot:
    """Pictures and labels of a request, each prepared for its tower."""

    dual: DualConfig
    towers: tuple[Inference, Inference]
    """Inference of pictures, and of labels."""
    prepared: tuple[PreparedTexts, PreparedTexts]

    async def logits(self) -> list[Floats]:
        """Return the logits of the labels for each picture, `[C]` each.

        Raises:
            NotVerified: vectors failed the verification of a tower's artifact.
            Overloaded: a queue has no room, or the deadline cannot be met.
            ServiceError: an engine failed.

        """
        pictures, labels = [
            await _unit_vectors(inference, prepared)
            for inference, prepared in zip(self.towers, self.prepared, strict=True)
        ]
        return [*await asyncio.to_thread(label_logits, pictures, labels, self.dual)]


def label_texts(labels: Sequence[str], template: str | None) -> list[str]:
    """Return the text of each label.

    Raises:
        Unprocessable: the template does not have exactly one place for a label.

    """
    text = TEMPLATE if template is None else template
    if text.count(PLACE) != 1:
        raise Unprocessable(f"template: put {PLACE} once, where the label goes")
    return [text.replace(PLACE, label) for label in labels]


def label_logits(pictures: Floats, labels: Floats, dual: DualConfig) -> Floats:
    """Return scale · cosine + bias of each picture and label, `[B, C]`.

    Radford et al. 2021 (https://arxiv.org/abs/2103.00020), figure 3; the bias is of Zhai et al.
    2023 (https://arxiv.org/abs/2303.15343), section 3.2.

    Args:
        pictures: unit vectors, `[B, D]`.
        labels: unit vectors, `[C, D]`.
        dual: scale and bias of the model.

    """
    cosines: Floats = pictures @ labels.T
    return np.float32(dual.logit_scale) * cosines + np.float32(dual.logit_bias)


async def _unit_vectors(inference: Inference, prepared: PreparedTexts) -> Floats:
    options = EncodeOptions(
        inference.config.num_hidden_layers, tokens=False, pooled=True, normalize=True
    )
    encoded = await inference.encode(prepared, options)
    return np.stack([requested(own.pooled) for own in encoded])
