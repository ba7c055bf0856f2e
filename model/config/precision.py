"""Precisions of an artifact's weights, and the uses for which each artifact is verified."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "int8"]
WeightBits = Literal[7, 8]
"""Bits of a weight in int8."""
Use = Literal["vectors", "heads"]
"""Use of an artifact: vectors of texts and outputs of a task head, or maps and hidden states."""
USES: tuple[Use, ...] = get_args(Use)
