"""Differences between a text's hidden states alone and among other texts, bit for bit.

Run: python -m benchmarks.company [--artifact FOLDER …] [--tokens N …] [--every N] [--threads N]

Texts are seeded random ids of every N-th length. Each is computed alone, and once in a batch of
about each number of tokens, among texts of other lengths. ONEDNN_MAX_CPU_ISA shows lesser
processors to OpenVINO.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.service import default_artifact
from model.artifact.manifest import Artifact, load_artifact
from model.numerics.batch import Ids, pack
from model.runtimes.contract import Floats, Resources
from model.runtimes.registry import load_runtime

LONGEST = 512


def measure(artifact: Artifact, tokens: Sequence[int], every: int, threads: int) -> str:
    """Return a line: the share of equal texts, the least cosine, and the shares layer by layer."""
    runtime = load_runtime(artifact, Resources(threads=threads))
    config = artifact.manifest.config
    rng, layers = np.random.default_rng(0), range(config.num_hidden_layers + 1)
    longest = min(config.max_position_embeddings, LONGEST)

    def states(texts: list[Ids]) -> list[Floats]:
        return runtime.hidden_states(pack([(ids, np.zeros_like(ids)) for ids in texts]), layers)

    def text(length: int) -> Ids:
        return rng.integers(5, config.vocab_size, length)

    equal, cosines = [], []
    for length in range(1, longest + 1, every):
        own = text(length)
        alone = states([own])
        for batch_tokens in tokens:
            before, after = company(batch_tokens - length, longest, rng)
            start = sum(before)
            found = states([*map(text, before), own, *map(text, after)])
            rows = [state[start : start + length] for state in found]
            equal.append([np.array_equal(*pair) for pair in zip(rows, alone, strict=True)])
            cosines.append(cosine(rows[-1].mean(axis=0), alone[-1].mean(axis=0)))
    by_layer = np.array(equal)
    shares = " ".join(f"{share:.3f}" for share in by_layer.mean(axis=0))
    return (
        f"{config.model_type} {artifact.manifest.precision}, {threads} threads: {len(equal)} "
        f"pairs, {by_layer.all(axis=1).mean():.1%} equal, least cosine {min(cosines):.6f}; "
        f"equal by layer {shares}"
    )


def company(tokens: int, longest: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return lengths of the texts before and after, at least one text and about `tokens` in all."""
    lengths = [int(rng.integers(1, longest + 1))]
    while sum(lengths) < tokens:
        lengths.append(int(rng.integers(1, min(longest, tokens - sum(lengths)) + 1)))
    place = int(rng.integers(len(lengths) + 1))
    return lengths[:place], lengths[place:]


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine of two vectors, computed in float64."""
    wide = a.astype(np.float64), b.astype(np.float64)
    return float(wide[0] @ wide[1] / (np.linalg.norm(wide[0]) * np.linalg.norm(wide[1])))


def main() -> None:
    """Compare the default model, or artifacts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--artifact", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--every", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folders = options.artifact or [default_artifact().folder]
    for artifact in map(load_artifact, folders):
        print(measure(artifact, options.tokens, options.every, options.threads), flush=True)


if __name__ == "__main__":
    main()
