"""Cost of recomputing all layers of a text, as a multiple of encoding the text.

Both run in turn on one thread, and processor time is measured.

Run: python -m benchmarks.layer_parts [--rounds N] [--tokens S …] [--artifact FOLDER].
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.service import default_artifact
from benchmarks.harness.timing import in_turn
from model.artifact.layer_parts import LayerStep
from model.artifact.manifest import Artifact, load_artifact
from model.numerics.batch import pack
from model.runtimes.capabilities import LayerRecomputation, capability
from model.runtimes.registry import load_runtime


def measure(artifact: Artifact, lengths: Sequence[int], rounds: int) -> None:
    """Print the median, smallest and largest ratio for each length."""
    runtime, config = load_runtime(artifact), artifact.manifest.config
    recomputation = capability(runtime, LayerRecomputation)
    mask = np.ones(config.num_attention_heads, np.float32)
    every = range(config.num_hidden_layers + 1)
    for tokens in lengths:
        ids = np.random.default_rng(tokens).integers(0, config.vocab_size, tokens)
        batch = pack([(ids, np.zeros_like(ids))])
        states = runtime.hidden_states(batch, every)
        patch = np.zeros((len(mask), tokens, config.head_size), np.float32)
        steps = [LayerStep(state, layer, mask, patch) for layer, state in enumerate(states[:-1])]
        error = max(
            float(np.abs(recomputation.layer_parts(step).state - states[step.layer + 1]).max())
            for step in steps
        )
        seconds = in_turn(
            {
                "encode": lambda batch=batch: runtime.hidden_states(batch, every),
                "layers": lambda steps=steps: [recomputation.layer_parts(step) for step in steps],
            },
            rounds,
            clock=time.thread_time,
        )
        ratios = [one / other for one, other in zip(*reversed(seconds.values()), strict=True)]
        print(
            f"{tokens:4} tokens: {statistics.median(ratios):.2f} times ({min(ratios):.2f} to "
            f"{max(ratios):.2f}), largest difference of a state {error:.1e}"
        )


def main() -> None:
    """Measure the default model, or an artifact."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128, 256, 512])
    parser.add_argument("--artifact", type=Path)
    options = parser.parse_args()
    artifact = load_artifact(options.artifact) if options.artifact else default_artifact()
    measure(artifact, options.tokens, options.rounds)


if __name__ == "__main__":
    main()
