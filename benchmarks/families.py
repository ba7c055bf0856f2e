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
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from transformers.utils import logging

from benchmarks.harness import alone, rounding
from benchmarks.harness.alone import Alone
from benchmarks.harness.builds import BUILDS, write
from benchmarks.harness.report import markdown, write_json
from benchmarks.harness.rounding import Rounding
from benchmarks.harness.service import InProcess, default_checkpoint
from benchmarks.harness.texts import read_workload
from benchmarks.harness.timing import in_turn, median_ratio
from benchmarks.harness.vectors import check_vectors
from benchmarks.peers.sentence_transformers import SentenceTransformersPeer
from model.export.exporter import export
from model.sources.files import cache_key

LENGTHS = (16, 128, 512, 2048)
CHECKED, LEAST_COSINE = 8, 0.99999
T = TypeVar("T")


@dataclass(frozen=True)
class Beside:
    """Rate on all cores, beside sentence-transformers."""

    texts_per_second: float
    times_theirs: float
    """Sentence-transformers' seconds over ours: the median of the rounds' ratios."""
    least_cosine: float


@dataclass(frozen=True)
class Found:
    """Measurements of one checkpoint."""

    alone: list[Alone]
    beside: Beside
    rounding: Rounding


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
        in_fresh_process(alone.measure, folder, options.lengths, options.rounds),
        in_fresh_process(beside, folder, checkpoint, texts, options.rounds),
        in_fresh_process(rounding.measure, folder),
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
