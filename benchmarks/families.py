"""Cost of encoder families: a token, a long text, one head; and their rounding errors.

Run: python -m benchmarks.families [BUILD or FOLDER …] [--lengths S …] [--rounds N] [--keep FOLDER]
     [--workload FILE.jsonl] [--texts N] [--json FILE]

A build is a random checkpoint of `benchmarks.harness.builds`, a folder any other checkpoint. Each
is exported in fp32 and verified, and measured in three processes of its own:

    alone       one text of each length on one thread: processor time of its vector, and of one head
                of the last layer computed from the text, in turn; peak memory above the model's
    beside      the workload on all cores, by Headscope as the service computes it and by
                sentence-transformers at its defaults, in turn, if their vectors are the same
    rounding    the largest difference of any map of a text of 128 random tokens: ONNX Runtime and
                PyTorch in float32 to each other, and each to PyTorch in float64
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from transformers.utils import logging

from benchmarks.harness.builds import BUILDS, write
from benchmarks.harness.report import markdown, write_json
from benchmarks.harness.service import InProcess, default_checkpoint
from benchmarks.harness.texts import read_workload
from benchmarks.harness.timing import in_turn, median_ratio
from benchmarks.harness.vectors import check_vectors
from benchmarks.peers.sentence_transformers import SentenceTransformersPeer
from model.artifact.manifest import load_artifact
from model.encoder.encoder import Encoder
from model.export.exporter import export
from model.numerics.batch import Batch, pack
from model.numerics.pooling import TextPooling
from model.packing import PackedBatch
from model.runtimes.capabilities import capability
from model.runtimes.contract import Heads
from model.runtimes.onnx import OnnxRuntime
from model.runtimes.pytorch import load_modules
from model.sources.files import cache_key
from testing.memory import MEBIBYTE, forget_peak, memory_bytes

LENGTHS = (16, 128, 512, 2048)
LONG = 2048
"""Number of tokens from which a text runs without a warm-up: its first run counts."""
ROUND_TOKENS = 6000
"""Approximate tokens of all rounds of one length; a short text runs the requested rounds."""
ROUNDING_TOKENS = 128
CHECKED, LEAST_COSINE = 8, 0.99999
T = TypeVar("T")


@dataclass(frozen=True)
class Alone:
    """Cost of a text of one length."""

    tokens: int
    ms_a_token: float
    """Processor milliseconds of the vector divided by the tokens, median over the rounds."""
    one_head: float
    """Time of one head's weights, computed from the text, over the vector's: median of ratios."""
    peak_mib: float
    """Peak memory in MiB above the loaded model's."""


@dataclass(frozen=True)
class Beside:
    """Rate on all cores, beside sentence-transformers."""

    texts_per_second: float
    times_theirs: float
    """Sentence-transformers' seconds over ours: the median of the rounds' ratios."""
    least_cosine: float


@dataclass(frozen=True)
class Rounding:
    """Largest difference of any attention weight, layer by layer."""

    to_each_other: list[float]
    onnx_to_float64: list[float]
    torch_to_float64: list[float]


@dataclass(frozen=True)
class Found:
    """Measurements of one checkpoint."""

    alone: list[Alone]
    beside: Beside
    rounding: Rounding


def alone(folder: Path, lengths: Sequence[int], rounds: int) -> list[Alone]:
    """Return the cost of each length that an artifact's encoder takes, the shortest first."""
    runtime = OnnxRuntime(load_artifact(folder))
    loaded = memory_bytes("self", "VmRSS")
    fitting = sorted(n for n in lengths if n <= runtime.config.max_position_embeddings)
    return [of_length(runtime, tokens, rounds, loaded) for tokens in fitting]


def of_length(runtime: OnnxRuntime, tokens: int, rounds: int, loaded: int) -> Alone:
    """Return the cost of one length; the loaded model holds `loaded` bytes."""
    last = runtime.config.num_hidden_layers
    batch = random_batch(tokens, runtime.config.vocab_size)

    def one_head() -> None:
        (entering,), _ = runtime.encode(batch, [(0, last - 1)], [])
        capability(runtime, Heads).attention(entering, entering, last - 1, [0])

    ways = {
        "vector": lambda: runtime.encode(batch, [], [TextPooling(0, last, "mean")]),
        "one head": one_head,
    }
    forget_peak(os.getpid())
    times = max(1, min(rounds, ROUND_TOKENS // tokens))
    seconds = in_turn(ways, times, 0 if tokens >= LONG else 1, clock=time.process_time)
    return Alone(
        tokens=tokens,
        ms_a_token=1000 * statistics.median(seconds["vector"]) / tokens,
        one_head=median_ratio(seconds["one head"], seconds["vector"]),
        peak_mib=(memory_bytes("self", "VmHWM") - loaded) / MEBIBYTE,
    )


def random_batch(tokens: int, vocab_size: int) -> Batch:
    """Return a batch of one text of seeded random tokens."""
    ids = np.random.default_rng(tokens).integers(0, vocab_size, tokens)
    return pack([(ids, np.zeros_like(ids))])


def beside(folder: Path, checkpoint: Path, texts: list[str], rounds: int) -> Beside:
    """Measure the rates of Headscope and sentence-transformers in turn.

    Raises:
        OtherVectorsError: their vectors differ.

    """
    peer, ours = SentenceTransformersPeer(checkpoint), InProcess(folder)
    checked = texts[:CHECKED]
    cosine = check_vectors("ours", ours.vectors(checked), peer.encode_texts(checked), LEAST_COSINE)
    seconds = in_turn({"ours": lambda: ours(texts), "theirs": lambda: peer.seconds(texts)}, rounds)
    return Beside(
        texts_per_second=len(texts) / statistics.median(seconds["ours"]),
        times_theirs=median_ratio(seconds["theirs"], seconds["ours"]),
        least_cosine=cosine,
    )


def rounding(folder: Path) -> Rounding:
    """Compare the maps of a text of random tokens, each side from its own hidden states.

    Rotary angles stay float32 in the float64 run: they belong to the model, not to the arithmetic.
    """
    artifact = load_artifact(folder)
    runtime, encoder = OnnxRuntime(artifact), load_modules(artifact).encoder
    config = encoder.config
    batch = random_batch(min(ROUNDING_TOKENS, config.max_position_embeddings), config.vocab_size)
    layers, heads = range(config.num_hidden_layers), range(config.num_attention_heads)
    states = runtime.hidden_states(batch, layers)
    onnx = [capability(runtime, Heads).attention(states[i], states[i], i, heads) for i in layers]
    single, double = maps_of(encoder, batch), maps_of(copy.deepcopy(encoder).double(), batch)
    return Rounding(
        to_each_other=differences(onnx, single),
        onnx_to_float64=differences(onnx, double),
        torch_to_float64=differences(single, double),
    )


def maps_of(encoder: Encoder, batch: Batch) -> list[np.ndarray]:
    """Return the maps of one text, `[N, S, S]` for each layer."""
    with torch.inference_mode():
        output = encoder(PackedBatch.of(batch), output_attentions=True)
    return [maps[0].numpy() for maps in output.attentions]


def differences(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Return the largest absolute difference of each pair."""
    pairs = zip(found, expected, strict=True)
    return [float(np.abs(one.astype(np.float64) - other).max()) for one, other in pairs]


def artifact_of(checkpoint: Path, name: str, keep: Path) -> Path:
    """Return the folder of a checkpoint's verified export; export it if it is missing.

    Raises:
        SystemExit: the export fails verification.

    """
    folder = keep / cache_key(checkpoint, name, "fp32")
    if not folder.exists():
        record = export(
            checkpoint, folder, name, progress=lambda step: print(f"  {step}")
        ).manifest.verification
        if not record.passed:
            raise SystemExit(f"{name}: {record.failed}")
    return folder


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def measure(name: str, options: argparse.Namespace, texts: list[str], keep: Path) -> Found:
    """Measure a build, or the checkpoint in a folder."""
    print(name, flush=True)
    if name in BUILDS:
        checkpoint = write(BUILDS[name], keep / name, default_checkpoint())
    else:
        checkpoint = Path(name)
    folder = in_fresh_process(artifact_of, checkpoint, checkpoint.name, keep)
    return Found(
        in_fresh_process(alone, folder, options.lengths, options.rounds),
        in_fresh_process(beside, folder, checkpoint, texts, options.rounds),
        in_fresh_process(rounding, folder),
    )


def tables(found: Mapping[str, Found]) -> str:
    """Return Markdown tables: a row a checkpoint and length, then a row a checkpoint."""
    costs = [
        (name, each.tokens, *map("{:.3g}".format, (each.ms_a_token, each.one_head, each.peak_mib)))
        for name, of in found.items()
        for each in of.alone
    ]
    rates = [
        (name, f"{of.beside.texts_per_second:.1f}", f"{of.beside.times_theirs:.2f}")
        for name, of in found.items()
    ]
    rounded = [
        (
            name,
            len(of.rounding.to_each_other),
            *(largest(layers) for layers in asdict(of.rounding).values()),
        )
        for name, of in found.items()
    ]
    return "\n\n".join(
        (
            markdown(("", "tokens", "ms a token", "one head, × vector", "peak MiB"), costs),
            markdown(("", "texts/s", "× sentence-transformers"), rates),
            markdown(
                ("", "layers", "ONNX to PyTorch", "ONNX to float64", "PyTorch to float64"),
                rounded,
            ),
        )
    )


def largest(differences: Sequence[float]) -> str:
    return f"{max(differences):.1e}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(BUILDS), metavar="BUILD or FOLDER")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--workload", type=Path, help="lines {text}; by default PyTorch's documentation"
    )
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--keep", type=Path, help="a folder that keeps exports for the next run")
    parser.add_argument("--json", type=Path, help="where to write all figures, as they come")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    texts, found = read_workload(options.workload, options.texts), {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.names:
            found[name] = measure(name, options, texts, options.keep or Path(scratch))
            print(f"\n{tables({name: found[name]})}\n", flush=True)
            if options.json:
                write_json(options.json, {name: asdict(one) for name, one in found.items()})
    print(tables(found))


if __name__ == "__main__":
    main()
