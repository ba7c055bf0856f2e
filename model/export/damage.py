"""Checks that detect a damaged graph within the wide tolerances of bf16 and int8.

A tensor of an intact int8 graph may differ more from PyTorch than one of a float32 graph that
attends to padding. But an intact graph gives a text the same tensors in any batch, in every
precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from model.numerics.comparison import Floats, Key


def add_checks(
    references: Sequence[dict[Key, Floats]],
    candidates: Sequence[dict[Key, Floats]],
    alone: Sequence[Mapping[Key, Floats]],
    *,
    of_texts: bool = True,
) -> None:
    """Add the tensors of both checks to the tensors of a batch of texts.

    Args:
        references: PyTorch's tensors of each text.
        candidates: the artifact's tensors of each text in the batch.
        alone: the artifact's tensors of each text in a batch of its own.
        of_texts: whether the batch is of real texts, whose vectors have a bound of their own.

    """
    for reference, candidate, own in zip(references, candidates, alone, strict=True):
        checks = {
            replace(key, check="alone"): (tensor, candidate[key])
            for key, tensor in own.items()
            if key.kind in ("hidden", "pooled")
        }
        pooled = Key("pooled")
        if of_texts:
            checks[replace(pooled, check="text")] = reference[pooled], candidate[pooled]
        for key, (expected, actual) in checks.items():
            reference[key], candidate[key] = expected, actual
