"""Estimate of the memory that models will take, before they are loaded.

Weights take the bytes of the files that the engine reads, and batches take the bytes alive in the
widest layer. docs/decisions/0018-several-models-in-one-process.md compares the estimate with
resident memory.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from model.artifact.manifest import FLOAT_WEIGHTS, GOLDEN, Artifact, Manifest
from model.runtimes.contract import LOGITS
from service.engines.process import IDLE_SECONDS
from service.settings import Settings

MEBIBYTE = 2**20
CPU_BATCH_TOKENS = 512
"""Default maximum tokens of a batch on a CPU; see `Engine.batch_tokens`."""
QUERIES_AT_ONCE = 1024
"""Maximum number of queries of a long text whose weights exist at a time."""


TORCH_BYTES = 260 * MEBIBYTE
"""Bytes of PyTorch's process, without the weights of its encoders."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of a model in one process."""

    weights: int
    """Bytes of the files that are mapped or read."""
    batches: int
    """Bytes of all concurrent batches at their maximum size."""

    @property
    def total(self) -> int:
        """Bytes of weights and batches."""
        return self.weights + self.batches


def footprint(artifact: Artifact, settings: Settings) -> Footprint:
    """Estimate the memory of a model on a CPU, with its vision tower if it has one."""
    towers = [_of_encoder(tower.manifest, settings) for tower in artifact.towers]
    return Footprint(sum(own.weights for own in towers), sum(own.batches for own in towers))


def _of_encoder(manifest: Manifest, settings: Settings) -> Footprint:
    files = manifest.files
    if settings.engine == "torch":
        weights = sum(files[name].bytes for name in FLOAT_WEIGHTS if name in files)
    else:
        weights = sum(
            record.bytes if record.serving_bytes is None else record.serving_bytes
            for name, record in files.items()
            if name != GOLDEN
        )
    calls = settings.threads or len(os.sched_getaffinity(0))
    longest = settings.max_length or manifest.sentence.max_length
    if manifest.images:
        longest = manifest.config.max_position_embeddings
    tokens = max(settings.max_batch_tokens or CPU_BATCH_TOKENS, longest)
    # logits and log-probabilities of the labels scored at a time
    logits = 2 * 4 * LOGITS if manifest.decoder else 0
    return Footprint(weights, calls * (tokens * _bytes_per_token(manifest, longest) + logits))


def torch_footprint(artifacts: Iterable[Artifact], settings: Settings) -> int:
    """Return the bytes of a worker's PyTorch process once it has loaded every model.

    They are 0 if PyTorch is not installed or no artifact has its weights. They are also 0 if
    PyTorch is the engine, as its weights then count in each model's footprint.
    """
    if settings.engine == "torch" or importlib.util.find_spec("torch") is None:
        return 0
    weights = sum(
        record.bytes
        for artifact in artifacts
        for tower in artifact.towers
        for name, record in tower.manifest.files.items()
        if name in FLOAT_WEIGHTS and not tower.manifest.serving_only
    )
    return TORCH_BYTES + weights if weights else 0


def _bytes_per_token(manifest: Manifest, longest: int) -> int:
    """Return the bytes that a token of a batch keeps alive in the widest layer, in float32.

    These are 6 hidden vectors (state, residual, query, key, value, context), 2 of the feed-forward
    part, and a row of scores and a row of weights for every head. A decoder layer adds 3 hidden
    vectors (encoder state, query and context of cross-attention), and the rows of cross-attention.
    """
    config = manifest.config
    keys = min(longest, QUERIES_AT_ONCE)
    stacks = [(config, 6, 2 * keys)]
    if manifest.decoder:
        stacks.append((manifest.decoder.layers, 9, 4 * keys))
    return max(
        4 * (states * of.hidden_size + 2 * of.intermediate_size + rows * of.num_attention_heads)
        for of, states, rows in stacks
    )


def report(models: Mapping[str, Footprint], workers: int, torch_bytes: int = 0) -> Iterator[str]:
    """Yield a line for each model, and a line of the total for several models or workers.

    `torch_bytes` of a worker's PyTorch process have a line unless they are 0.
    """
    for name, size in models.items():
        yield (
            f"{name} takes about {_mebibytes(size.total)}: {_mebibytes(size.weights)} of weights "
            f"and up to {_mebibytes(size.batches)} for batches"
        )
    if len(models) > 1 or workers > 1:
        counted = f"{len(models)} models" if len(models) > 1 else "the model"
        places = f" in {workers} workers" if workers > 1 else ""
        yield f"{counted}{places}: about {_mebibytes(total(models, workers))} in all"
    if torch_bytes:
        where = "a process for all models" + (" of each worker" if workers > 1 else "")
        yield (
            f"PyTorch takes up to {_mebibytes(torch_bytes)} more, in {where}, from the first "
            f"request that needs it, such as /verify, until {IDLE_SECONDS / 60:g} minutes after "
            "the last"
        )


def total(models: Mapping[str, Footprint], workers: int) -> int:
    """Return the bytes of all models in all workers, which do not share memory."""
    return workers * sum(size.total for size in models.values())


def shortage(models: Mapping[str, Footprint], workers: int, available: int | None) -> str | None:
    """Return a warning if the models exceed the available memory, else None."""
    needed = total(models, workers)
    if available is None or needed <= available:
        return None
    return (
        f"about {_mebibytes(needed)} are needed and {_mebibytes(available)} are available: serve "
        "fewer models or workers, or limit --max-length"
    )


def _mebibytes(size: int) -> str:
    return f"{round(size / MEBIBYTE)} MiB"
