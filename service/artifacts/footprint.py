"""Memory that models will take, told before any of them is loaded.

An estimate, held against resident memory in docs/decisions/0018: weights are as large as the files
that the engine reads, and batches as what is alive at once in the widest layer.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from model.artifact.manifest import FLOAT_WEIGHTS, GOLDEN, Artifact, Manifest
from model.runtimes.contract import LOGITS
from service.engines.torch_host import IDLE_SECONDS
from service.settings import Settings

MEBIBYTE = 2**20
CPU_BATCH_TOKENS = 512
"""Of a batch on a CPU by default; see `Engine.batch_tokens`."""
QUERIES_AT_ONCE = 1024
"""Queries of a long text whose weights exist at a time."""


TORCH_BYTES = 260 * MEBIBYTE
"""Bytes of PyTorch's process beside the weights of its encoders."""


@dataclass(frozen=True)
class Footprint:
    """Bytes that a model takes in one process."""

    weights: int
    """Files that are mapped or read."""
    batches: int
    """Batches of the largest size, as many as are computed at a time."""

    @property
    def total(self) -> int:
        """Of both."""
        return self.weights + self.batches


def footprint(artifact: Artifact, settings: Settings) -> Footprint:
    """The estimate for a model on a CPU."""
    manifest = artifact.manifest
    files = manifest.files
    if settings.engine == "torch":
        weights = sum(files[name].bytes for name in FLOAT_WEIGHTS if name in files)
    else:
        read = [record for name, record in files.items() if name != GOLDEN]
        weights = sum(
            each.bytes if each.serving_bytes is None else each.serving_bytes for each in read
        )
    calls = settings.threads or len(os.sched_getaffinity(0))
    longest = settings.max_length or manifest.sentence.max_length
    tokens = max(settings.max_batch_tokens or CPU_BATCH_TOKENS, longest)
    return Footprint(
        weights, calls * (tokens * _bytes_per_token(manifest, longest) + _logits(manifest))
    )


def torch_footprint(artifacts: Iterable[Artifact], settings: Settings) -> int:
    """Return the bytes of a worker's PyTorch process once it has computed with every model.

    They are 0 where PyTorch is not installed or has no weights, and where it is the engine, whose
    weights count as the models' own.
    """
    if settings.engine == "torch" or importlib.util.find_spec("torch") is None:
        return 0
    whole = [each.manifest for each in artifacts if not each.manifest.serving_only]
    files = [(name, record) for manifest in whole for name, record in manifest.files.items()]
    weights = sum(record.bytes for name, record in files if name in FLOAT_WEIGHTS)
    return TORCH_BYTES + weights if weights else 0


def _bytes_per_token(manifest: Manifest, longest: int) -> int:
    """What a token of a batch keeps alive in the widest layer, in float32.

    Its states, the residual's, query, key, value and context; the feed-forward's two; and its rows
    of every head's scores and weights. A decoder's layer also has the encoder's state, and of
    cross-attention a query and a context, beside one row more.
    """
    config = manifest.config
    if manifest.foreign:
        return 4 * 6 * config.hidden_size
    keys = min(longest, QUERIES_AT_ONCE)
    stacks = [(config, 6, 2 * keys)]
    if manifest.decoder:
        stacks.append((manifest.decoder.layers, 9, 4 * keys))
    return max(
        4 * (states * of.hidden_size + 2 * of.intermediate_size + rows * of.num_attention_heads)
        for of, states, rows in stacks
    )


def _logits(manifest: Manifest) -> int:
    """Logits of the labels that are scored at a time, and their logarithms."""
    return 2 * 4 * LOGITS if manifest.decoder else 0


def report(models: Mapping[str, Footprint], workers: int, torch_bytes: int = 0) -> Iterator[str]:
    """Yield a line a model, and one of all together where there are several, or several workers.

    Args:
        models: by name.
        workers: processes that serve all of them.
        torch_bytes: of the PyTorch process of a worker; no line of it with 0.

    """
    for name, found in models.items():
        yield (
            f"{name} takes about {_mebibytes(found.total)}: {_mebibytes(found.weights)} of weights "
            f"and up to {_mebibytes(found.batches)} for batches"
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
    """Bytes of all models in all workers, each of which has its own."""
    return workers * sum(found.total for found in models.values())


def shortage(models: Mapping[str, Footprint], workers: int, available: int | None) -> str | None:
    """A warning where that exceeds the memory available; None where it does not."""
    needed = total(models, workers)
    if available is None or needed <= available:
        return None
    return (
        f"about {_mebibytes(needed)} are needed and {_mebibytes(available)} are available: serve "
        "fewer models or workers, or limit --max-length"
    )


def _mebibytes(size: int) -> str:
    return f"{round(size / MEBIBYTE)} MiB"
