"""Record of a verification: a verdict for each use of an artifact, and its figures."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from model.config.encoder import Part
from model.config.precision import USES, Use
from model.numerics.similarity import Similarity


class Verdict(Part):
    """Verdict about one use."""

    passed: bool
    failed: str | None = None
    """First figure beyond its bound, in one line; None if the use passed."""


class VerificationRecord(Part):
    """Result of the verification at export."""

    reference: Literal["pytorch", "table"] = "pytorch"
    """Reference of the comparison: the checkpoint in PyTorch, or a static embedding's own table."""
    vectors: Verdict
    heads: Verdict
    provider: str
    """Hardware that computed, as the runtime reports it."""
    emulated: bool = False
    """Whether attention of `vectors.onnx` was emulated, as no device was there that has it."""
    inputs: int
    """Number of texts whose tensors were compared."""
    tolerances: dict[str, dict[str, float]]
    """`atol`, `rtol` and `cosine_at_least` of each kind of tensor."""
    max_abs_diff_below: dict[str, float | None]
    """Largest difference of each kind, rounded up to a power of ten, because the exact figure
    depends on the machine and the same input must give the same manifest. None: not finite."""
    min_cosine: dict[str, float]
    """Smallest cosine of any row with the reference, for each kind, to four digits."""
    similarity: Similarity | None = None
    """Agreement about the similarity of texts; None if every tensor is held to its tolerance
    (fp32), or if the model has a task head."""
    similarity_at_least: dict[str, float] = Field(default_factory=dict)
    """Minimum figures of `similarity` for a passed verdict."""

    def verdict(self, use: Use) -> Verdict:
        """Return the verdict on a use."""
        return self.vectors if use == "vectors" else self.heads

    @property
    def passed(self) -> bool:
        """Whether at least one use passed, so that the artifact can be served."""
        return self.vectors.passed or self.heads.passed

    @property
    def failed(self) -> str | None:
        """Failed uses, each with its figure, in one line; None if both passed."""
        if self.vectors == self.heads:
            return self.heads.failed
        verdicts = {use: self.verdict(use) for use in USES}
        failed = [f"{use}: {own.failed}" for use, own in verdicts.items() if not own.passed]
        return "; ".join(failed)


UNVERIFIED = VerificationRecord(
    vectors=Verdict(passed=False),
    heads=Verdict(passed=False),
    provider="",
    inputs=0,
    tolerances={},
    max_abs_diff_below={},
    min_cosine={},
)
"""Record of an artifact before its verification."""


def verdict_lines(record: VerificationRecord) -> list[str]:
    """Return the lines that an export prints about its verification: one, or one per use."""
    verdicts = {f"{use}: ": record.verdict(use) for use in USES}
    if record.vectors == record.heads:
        verdicts = {"": record.heads}
    return [
        use + ("verified" if own.passed else f"verification FAILED: {own.failed}")
        for use, own in verdicts.items()
    ]


def next_power_of_ten(value: float) -> float | None:
    """Return `value` rounded up to a power of ten; 0 for 0, None for infinity."""
    if value == 0:
        return 0.0
    if math.isinf(value):
        return None
    return float(f"1e{math.ceil(math.log10(value))}")
