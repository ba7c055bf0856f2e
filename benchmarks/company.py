"""Differences between a text's hidden states alone and among other texts, bit for bit.

Run: python -m benchmarks.company [--artifact FOLDER] [--tokens N …] [--every N] [--threads N]

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
from model.runtimes.contract import Floats
from model.runtimes.registry import load_runtime


def measure(artifact: Artifact, tokens: Sequence[int], every: int, threads: int) -> str:
    """Return a line: share of equal texts, of equal states by layer, and the least cosine."""
    runtime, config = load_runtime(artifact, threads=threads), artifact.manifest.config
    rng, layers = np.random.default_rng(0), range(config.num_hidden_layers + 1)
    most = min(config.max_position_embeddings, 512)

    def states(texts: list[Ids]) -> list[Floats]:
        return runtime.hidden_states(pack([(ids, np.zeros_like(ids)) for ids in texts]), layers)

    def text(length: int) -> Ids:
        return rng.integers(5, config.vocab_size, length)

    equal, cosines = [], []
    for length in range(1, most + 1, every):
        own = text(length)
        alone = states([own])
        for budget in tokens:
            before, after = company(budget - length, most, rng)
            start = sum(before)
            found = states([*map(text, before), own, *map(text, after)])
            rows = [state[start : start + length] for state in found]
            equal.append([np.array_equal(*pair) for pair in zip(rows, alone, strict=True)])
            cosines.append(cosine(rows[-1].mean(axis=0), alone[-1].mean(axis=0)))
    by_layer = " ".join(f"{share:.3f}" for share in np.mean(equal, axis=0))
    return (
        f"{config.model_type} {artifact.manifest.precision}, {threads} threads: {len(equal)} pairs, "
        f"{np.mean([all(layers) for layers in equal]):.1%} equal, least cosine "
        f"{min(cosines):.7f}; equal by layer {by_layer}"
    )


def company(tokens: int, most: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return lengths of the texts before and after, at least one text and about `tokens` in all."""
    lengths = [int(rng.integers(1, most + 1))]
    while sum(lengths) < tokens:
        lengths.append(int(rng.integers(1, min(most, tokens - sum(lengths)) + 1)))
    place = int(rng.integers(len(lengths) + 1))
    return lengths[:place], lengths[place:]


def cosine(a: Floats, b: Floats) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--artifact", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--every", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    artifacts = map(load_artifact, options.artifact or [default_artifact().folder])
    for artifact in artifacts:
        print(measure(artifact, options.tokens, options.every, options.threads), flush=True)


if __name__ == "__main__":
    main()
