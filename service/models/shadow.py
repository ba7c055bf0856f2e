"""Shadow comparison: live texts computed by the serving version and by the one to replace it.

Their pooled vectors are compared by cosine. Both versions tokenise the text themselves, so versions
with different tokenizers can be compared. The texts count as a client of their own, which takes a
client's fair share at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass

import numpy as np

from service.engines.contract import Floats
from service.errors import ServiceError
from service.inference.encoding import EncodeOptions
from service.inference.tokenization.inputs import Input, size_of
from service.inference.tokenization.tokenizer import Options
from service.models.served import ServedModel
from service.scheduler.submission import Caller

CLIENT = "shadow"
"""Name of the client for which texts are computed again."""
TEXT_SECONDS = 30.0
"""Deadline of the two computations of a text."""
MOST_SIZE = 2**20
"""Maximum characters of a text, and bytes of a picture's file, that wait for their comparison."""
WAITING_TEXTS = 64
"""Maximum number of sampled texts that wait for their comparison; further ones are skipped."""


@dataclass(frozen=True)
class ShadowReport:
    """Outcome of a comparison."""

    texts: int
    """Number of compared texts."""
    failed: int
    """Number of texts that the new version could not compute while the old one could."""
    seconds: float
    mean_cosine: float | None
    """Mean cosine of the two versions' vectors; None without a comparable text."""
    min_cosine: float | None
    same_size: bool = True
    """Whether the vectors have the same number of features; otherwise no cosine exists."""


class Shadow:
    """Comparison of a share of the live texts before a swap."""

    def __init__(self, share: float, texts: int, seconds: float) -> None:
        """Set the comparison up.

        Args:
            share: share of the requests of which the first text is compared, 0 … 1.
            texts: number of texts after which the comparison ends.
            seconds: seconds after which the comparison ends.

        """
        self._share = share
        self._texts = texts
        self._seconds = seconds
        self._waiting: asyncio.Queue[tuple[Input, Options]] = asyncio.Queue(WAITING_TEXTS)

    def sample(self, given: Input, options: Options, caller: Caller) -> None:
        """Consider the first text or picture of a request, but none of the comparison's own."""
        if size_of(given) > MOST_SIZE:
            return
        if caller.client != CLIENT and random.random() < self._share:  # noqa: S311 - no secret
            with contextlib.suppress(asyncio.QueueFull):
                self._waiting.put_nowait((given, options))

    async def compare(self, old: ServedModel, new: ServedModel) -> ShadowReport:
        """Compare live texts of the old version until there are enough, or the time is over.

        Args:
            old: serving version, whose requests are sampled.
            new: version to replace it.

        """
        began = time.monotonic()
        cosines: list[float] = []
        failed = 0
        same_size = old.inference.vectors.kept() == new.inference.vectors.kept()
        for tower in old.towers:
            tower.inference.sample = self.sample
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    while len(cosines) + failed < self._texts:
                        given, options = await self._waiting.get()
                        expected = await _vector(old, given, options)
                        if expected is None:
                            continue  # the text is at fault, or the service is busy
                        computed = await _vector(new, given, options)
                        if computed is None:
                            failed += 1
                        elif same_size:
                            cosines.append(_cosine(expected, computed))
                        else:
                            cosines.append(0.0)
        finally:
            for tower in old.towers:
                tower.inference.sample = None
        known = cosines if same_size else []
        return ShadowReport(
            texts=len(cosines) + failed,
            failed=failed,
            seconds=round(time.monotonic() - began, 3),
            mean_cosine=float(np.mean(known)) if known else None,
            min_cosine=min(known, default=None),
            same_size=same_size,
        )


async def _vector(model: ServedModel, given: Input, options: Options) -> Floats | None:
    """Return the pooled vector of a text or picture; None if the model cannot compute it."""
    inference = model.tower([given]).inference
    caller = Caller(CLIENT, time.monotonic() + TEXT_SECONDS)
    layer = inference.manifest.config.num_hidden_layers
    try:
        prepared = await inference.prepare([given], options, caller, "encode")
        (encoding,) = await inference.encode(
            prepared, EncodeOptions(layer, tokens=False, pooled=True)
        )
    except ServiceError:
        return None
    return encoding.pooled


def _cosine(one: Floats, other: Floats) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else float(np.array_equal(one, other))
