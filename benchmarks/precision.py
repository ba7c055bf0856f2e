"""Quality of bf16 and int8 over texts, odd texts, STS-B and each layer, simulated in PyTorch.

Run: python -m benchmarks.precision [BUILD or FOLDER …] [--kinds bf16,int8,int7]
     [--pairs FILE.csv] [--prefix TEXT] [--seeded FOLDER]

A build is a random checkpoint of `benchmarks.harness.builds`, a folder any other checkpoint. No
artifact is made: bf16 rounds every operation's result to bfloat16; int8 multiplies the same
integers as a runtime, and computes in float32 between the products; int7 is int8 with 7-bit
weights. So the figures are the same on every processor, even one without such products, and none
measures speed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.harness.builds import BUILDS, write
from benchmarks.harness.report import markdown
from benchmarks.harness.service import default_checkpoint
from benchmarks.harness.vectors import least_cosine
from model.checkpoint import load_checkpoint
from model.encoder.encoder import Encoder
from model.export.calibration import batches_of, calibration_batches, similarity_batches
from model.export.quantization import Int8Linear, quantize
from model.export.samples import TEXTS
from model.families.registry import read_config
from model.numerics.batch import Batch
from model.numerics.pooling import pool
from model.numerics.similarity import similarity
from model.packing import PackedBatch
from model.sources.files import transformer_folder
from model.sources.sentence import read_sentence
from model.tokenization.tokenizer import load_tokenizer, reading_segments
from service.files.bench import ranking, read_pairs

Floats = NDArray[np.float32]
KINDS = ("bf16", "int8", "int7")


class Bfloat16(TorchDispatchMode):
    """Dispatch mode that rounds every operation's float32 results to bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute in float32, then round; leave views and in-place operations unrounded."""
        result = func(*args, **(kwargs or {}))
        if func.is_view or func._schema.is_mutable:
            return result
        return tree_map(_rounded, result)


def _rounded(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.to(torch.bfloat16).float()
    return value


class Checkpoint:
    """A checkpoint's float32 encoder and tokenizer."""

    def __init__(self, folder: Path) -> None:
        inside = transformer_folder(folder)
        config = reading_segments(read_config(inside), inside)
        self.sentence = read_sentence(folder, config.max_position_embeddings, config.hidden_size)
        self.tokenizer = load_tokenizer(inside, config, lowercase=self.sentence.lowercase)
        self.encoder = load_checkpoint(inside, config)

    def states(self, encoder: Encoder, batches: Iterable[Batch]) -> list[list[Floats]]:
        """Return all hidden states `[S, H]` of each text."""
        texts = []
        for batch in batches:
            with torch.no_grad():
                hidden = [state.numpy() for state in encoder(PackedBatch.of(batch)).hidden_states]
            for start, end in itertools.pairwise(batch.cu_seqlens):
                texts.append([state[start:end] for state in hidden])
        return texts

    def vectors(self, states: list[list[Floats]]) -> Floats:
        """Return the pooled vectors `[n, H]`."""
        return np.stack([pool(text[-1], self.sentence.pooling) for text in states])

    def batches(self, texts: list[str]) -> Iterator[Batch]:
        """Yield texts in batches."""
        return batches_of(texts, self.tokenizer, self.sentence.max_length)

    def of_kind(self, kind: str) -> tuple[Encoder, AbstractContextManager[object]]:
        """Return a less exact encoder, and the context to compute it in."""
        if kind == "bf16":
            rounded = copy.deepcopy(self.encoder)
            for parameter in rounded.parameters():
                parameter.data = _rounded(parameter.data)
            return rounded, Bfloat16()
        batches = calibration_batches(self.tokenizer, self.sentence.max_length)
        quantized = quantize(self.encoder, batches, 8 if kind == "int8" else 7)
        print(f"{kind}: kept in floating point: {', '.join(quantized.kept) or 'none'}", flush=True)
        return quantized.encoder, mock.patch.object(Int8Linear, "forward", _product)


def _product(linear: Int8Linear, x: Tensor) -> Tensor:
    """Return an int8 linear map's output as a runtime computes it; eager PyTorch has no such op."""
    y = linear.product(x.flatten(0, -2)).reshape(*x.shape[:-1], -1)
    return y if linear.bias is None else y + linear.bias


def rows_of(
    name: str, checkpoint: Checkpoint, arguments: argparse.Namespace
) -> Iterator[list[Any]]:
    """Yield a row of the table for each kind; print the smallest cosine of each layer."""
    texts = list(similarity_batches(checkpoint.tokenizer, checkpoint.sentence.max_length))
    odd = [text for text in TEXTS if isinstance(text, str)]
    pairs = read_pairs(arguments.pairs) if arguments.pairs else []
    scored = [arguments.prefix + text for pair in pairs for text in pair[:2]]

    def compute(encoder: Encoder) -> tuple[list[list[Floats]], Floats, float]:
        states = checkpoint.states(encoder, texts)
        of_odd = checkpoint.vectors(checkpoint.states(encoder, checkpoint.batches(odd)))
        rho = float("nan")
        if pairs:
            vectors = checkpoint.vectors(checkpoint.states(encoder, checkpoint.batches(scored)))
            rho = ranking(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), pairs)
        return states, of_odd, rho

    exact, exact_odd, exact_rho = compute(checkpoint.encoder)
    for kind in arguments.kinds.split(","):
        encoder, context = checkpoint.of_kind(kind)
        with context:
            found, found_odd, rho = compute(encoder)
        layers = [
            min(least_cosine(a[layer], b[layer]) for a, b in zip(exact, found, strict=True))
            for layer in range(len(exact[0]))
        ]
        print(f"{name} {kind}, least cosine of a token by layer: {np.round(layers, 3).tolist()}")
        figures = similarity(checkpoint.vectors(exact), checkpoint.vectors(found))
        least = least_cosine(exact_odd, found_odd)
        spearman = f"{100 * rho:.2f} ({100 * exact_rho:.2f})" if pairs else ""
        yield [name, kind, *list(figures.model_dump().values())[1:], f"{least:.4f}", spearman]


def main() -> None:
    """Print a table of all checkpoints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="*")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--seeded", type=Path, help="folder that keeps the random checkpoints")
    arguments = parser.parse_args()
    heads = [
        "model",
        "",
        "ρ",
        "recall@10",
        "mean",
        "5 %",
        "least",
        "least, odd texts",
        "STS (fp32)",
    ]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        kept = arguments.seeded or Path(scratch)
        for name in arguments.checkpoints or [str(default_checkpoint())]:
            folder = Path(name)
            if name in BUILDS:
                folder = write(BUILDS[name], kept / name, default_checkpoint())
            rows += rows_of(folder.name, Checkpoint(folder), arguments)
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
