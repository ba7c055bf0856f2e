"""Correctness, speed and distance from the hardware limits on a GPU, in one command.

Run: python -m benchmarks.gpu [--only STEP …] [--model FOLDER] [--json FILE] [--workload FILE.jsonl]
     [--device cuda|cpu] [--short | --quick] [--keep FOLDER]

Eight steps in this order, each of which can run alone:

    environment   GPU, driver, CUDA, ONNX Runtime, and the provider that really computes
    correctness   fp32 and fp16 against transformers in float32: every state, map and vector
    limits        matrix products in fp16, bf16 and tf32; copies to, from and within the device
    throughput    in process: S = 32, 128, 512 and mixed lengths, the named model and BERT-base's
                  shape, as a share of the limit and beside sentence-transformers in float16
    http          1, 32 and 256 texts a request, JSON and safetensors, 1 to 8 workers
    attention     all maps of a text of 512 tokens, and one head's, against the copy
    memory        10,000 batches of mixed shapes
    profile       operators and kernels of a batch

A missing device or a wrong number ends the run; an error in any other step does not stop the rest.
Either way the exit code is 1. Figures are printed and written to JSON as they come, so that an
interrupted run keeps its figures; a table of all figures comes last. The sizes are chosen for
eight minutes on an H100.

Texts are a file of lines {"text"}, or synthetic ones of like lengths. The model is a checkpoint's
folder, or the embedded default. Only `http` needs the web packages. `--device cpu --quick` is a dry
run: each step that can run does so in tiny sizes, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transformers.utils import logging

from benchmarks import (
    attention,
    correctness,
    environment,
    in_process,
    limits,
    memory,
    over_http,
    profiling,
)
from benchmarks.harness.bench import Bench, Options
from benchmarks.harness.figures import Figure
from benchmarks.harness.report import Report
from benchmarks.harness.sizes import FULL, QUICK, SHORT
from model.sources.locate import DEFAULT_MODEL

STEPS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "environment": environment.measure,
    "correctness": correctness.measure,
    "limits": limits.measure,
    "throughput": in_process.measure,
    "http": over_http.measure,
    "attention": attention.measure,
    "memory": memory.measure,
    "profile": profiling.measure,
}
ESSENTIAL = ("environment", "correctness")
"""Steps that end the run if they fail: without them later figures mean nothing."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a checkpoint's folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--short", action="store_true", help="fewer sizes, to compare versions")
    sizes.add_argument("--quick", action="store_true", help="tiny sizes, for a dry run")
    parser.add_argument("--workload", type=Path, help="lines {text}; synthetic texts otherwise")
    parser.add_argument("--json", type=Path, help="where to write every figure")
    parser.add_argument("--keep", type=Path, help="a folder that keeps exports for the next run")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def folder_of(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    logging.disable_progress_bar()
    about = {name: getattr(options, name) for name in ("device", "short", "quick", "model")}
    report = Report(options.json, {**about, **environment.about()})
    with folder_of(options.keep) as folder:
        sizes = QUICK if options.quick else SHORT if options.short else FULL
        bench = Bench(Options(options.model, options.device, sizes, folder, options.workload))
        for name, step in STEPS.items():
            if name not in options.only:
                continue
            if not report.run(name, step(bench)) and name in ESSENTIAL:
                break
    print(f"\n{report.table()}")
    if options.device == "cpu":
        print("a dry run on a CPU: these figures do not hold for a GPU")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
