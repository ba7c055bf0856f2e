"""The cost of decomposing one text's vector, as a multiple of encoding the text.

Both run in turn through one scheduler and engine, and processor time is measured; an encode takes
its share of a full batch of texts of that length.

Run: python -m benchmarks.decomposition [--rounds N] [--tokens S …].
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.service import default_artifact
from model.artifact.manifest import Artifact
from service.engines.contract import Pooling, Task, TextTask
from service.engines.onnx import OnnxEngine
from service.inference.encoding import PreparedTexts
from service.inference.explanation.decomposition import ASSUMED, DecomposedText, decompose
from service.inference.timings import Timings
from service.inference.tokenization.text import ArrayText, places_of
from service.scheduler.call import ANYBODY
from service.scheduler.lanes import BatchLimits, Observer
from service.scheduler.scheduler import Scheduler


class Unobserved(Observer):
    """Observer that records nothing."""

    def batch_finished(self, *_: object) -> None: ...
    def count(self, *_: object) -> None: ...
    def tokenized(self, *_: object) -> None: ...
    def pictures_read(self, *_: object) -> None: ...
    def waited(self, *_: object) -> None: ...


async def measure(artifact: Artifact, lengths: Sequence[int], rounds: int) -> None:
    """Print a row a length: processor milliseconds, their ratio, and the error of the sum."""
    engine, config = OnnxEngine(artifact, "cpu", threads=1), artifact.manifest.config
    scheduler = Scheduler(engine, BatchLimits(engine.batch_tokens, 2**18), Unobserved())
    pooling = Pooling(config.num_hidden_layers, "mean")
    for tokens in lengths:
        ids = np.random.default_rng(tokens).integers(0, config.vocab_size, tokens)
        text = ArrayText([], ids, np.zeros_like(ids), places_of([]), [])
        count = max(1, engine.batch_tokens // tokens)
        tasks: list[Task] = [TextTask(ids, text.segment_ids, pooling=pooling)] * count
        encoded, decomposed, errors = [], [], []
        for _ in range(rounds):
            began = time.process_time()
            (done, *_) = await scheduler.submit("encode", tasks)
            encoded.append((time.process_time() - began) / count)
            began = time.process_time()
            prepared = PreparedTexts([text], ANYBODY, scheduler, Timings(tokens, 0.0, 0.0))
            decomposed_text = await decompose(prepared, config, text, pooling, ASSUMED)
            decomposed.append(time.process_time() - began)
            errors.append(_error(decomposed_text, done.value.pooled))
        ratios = [one / other for one, other in zip(decomposed, encoded, strict=True)]
        print(
            f"{tokens:4} tokens: encode {1000 * statistics.median(encoded):6.1f} ms, "
            f"decomposition {1000 * statistics.median(decomposed):7.0f} ms, "
            f"{statistics.median(ratios):5.0f} times ({min(ratios):.0f} to {max(ratios):.0f}), "
            f"error of the sum {max(errors):.0e}"
        )
    scheduler.close()


def _error(decomposed: DecomposedText, pooled: np.ndarray) -> float:
    """Return the distance of the shares' sum from the served vector, relative to its norm."""
    return float(np.linalg.norm(decomposed.shares.sum(axis=0) - pooled) / np.linalg.norm(pooled))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    options = parser.parse_args()
    asyncio.run(measure(default_artifact(), options.tokens, options.rounds))
