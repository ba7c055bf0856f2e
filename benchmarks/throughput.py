"""Throughput and latency of Headscope and its peers, in turn in one run.

Run: python -m benchmarks.throughput [--short] [--precisions fp32 bf16 int8] [--workload FILE.jsonl]
     [--model BUILD or FOLDER] [--peers NAME …] [--texts N] [--rounds N] [--connections [N …]]
     [--json FILE] [--plots FOLDER]

In process: Headscope, sentence-transformers at its defaults, and the peers of
`benchmarks.peers.in_process`. Over HTTP: Headscope and the peers of `benchmarks.peers.servers`,
one text a request, from a load generator in a process of its own; first in closed loop over 1, 16
and 64 connections, then with arrivals at fixed random times, at 0.7 of the rate just reached;
nothing if no number of connections is given. A build is a random checkpoint of
`benchmarks.harness.builds`.

In a round every way gets the whole workload, one way after another; no text is sent twice in a
sample. The matrix-product calibrator of its precision runs before and after each sample, so that a
rate can be given as a share of the machine's limit at that moment. A system is measured only if its
vectors match sentence-transformers' in float32; the table has the least cosine of 32 texts.

The short form is unfair to sentence-transformers in process, which sorts a list by length: with
padding it computes 5% more than the texts' own tokens for 2,000 texts, 30% more for 400 texts, and
twice as many for 120 texts. The full form has no such bias; with all peers it takes more than an
hour, and `--peers` chooses some. By default it draws its figures into docs/benchmarks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.harness.builds import BUILDS, write
from benchmarks.harness.calibrate import Calibrator, Precision
from benchmarks.harness.cost import flop
from benchmarks.harness.lineup import BASELINE, Lineup, Wanted, line_up
from benchmarks.harness.plots import PLOTS, draw
from benchmarks.harness.report import write_json
from benchmarks.harness.rows import FASTEST_PEER, content, summarise, table
from benchmarks.harness.service import default_checkpoint
from benchmarks.harness.texts import read_workload
from benchmarks.harness.ways import measure
from benchmarks.peers.in_process import PEERS
from benchmarks.peers.install import ENVIRONMENTS
from benchmarks.peers.sentence_transformers import SentenceTransformersPeer
from benchmarks.peers.servers import SERVERS
from model.families.registry import read_config

BASES = (f"{BASELINE}, in process", FASTEST_PEER)
"""Bases of the table's ratios."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="few texts, fewer connections")
    parser.add_argument("--precisions", nargs="+", choices=get_args(Precision), default=["fp32"])
    parser.add_argument(
        "--workload", type=Path, help="lines {text}; by default PyTorch's documentation"
    )
    parser.add_argument("--model", metavar="BUILD or FOLDER", help="by default the default model")
    names = [*PEERS, *SERVERS]
    parser.add_argument("--peers", nargs="*", choices=names, default=names, metavar="NAME")
    parser.add_argument("--texts", type=int, help="number of texts in a sample")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--connections", type=int, nargs="*")
    parser.add_argument("--json", type=Path, help="where to write every sample")
    parser.add_argument("--plots", type=Path, help="a folder for the figures")
    options = parser.parse_args()
    short = {"texts": 200, "rounds": 2, "connections": [64], "plots": None}
    full = {"texts": 2000, "rounds": 3, "connections": [1, 16, 64], "plots": PLOTS}
    for name, value in (short if options.short else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> None:
    options = parse()
    checkpoint = checkpoint_of(options.model)
    baseline = SentenceTransformersPeer(checkpoint)
    texts = read_workload(options.workload, options.texts)
    lengths = baseline.lengths(texts)
    cores = len(os.sched_getaffinity(0))
    config = read_config(checkpoint)
    sizes = config.hidden_size, config.intermediate_size
    with contextlib.ExitStack() as stack:
        wanted = Wanted(options.precisions, options.connections, options.peers)
        lineup = line_up(baseline, checkpoint, wanted, texts, stack)
        cost = flop(config, lengths)
        precisions = {way.precision for way in lineup.ways}
        calibrators = {one: Calibrator(one, cores, sizes) for one in precisions}
        samples = measure(lineup.ways, texts, cost, options.rounds, calibrators)
    rows = summarise(lineup.ways, samples, BASES)
    print(table(rows, BASES))
    print("\n".join(remarks(lineup, lengths, options.rounds)))
    if options.json:
        about = {"lengths": lengths, "rounds": options.rounds, "cores": cores}
        write_json(options.json, content(rows, samples, {**about, "absent": lineup.absent}))
    if options.plots:
        for path in draw(rows, options.plots):
            print(path)


def checkpoint_of(model: str | None) -> Path:
    """Return the folder of a build, which is written if it is missing, or of a checkpoint."""
    if model is None:
        return default_checkpoint()
    if model in BUILDS:
        return write(BUILDS[model], ENVIRONMENTS / "checkpoints" / model, default_checkpoint())
    return Path(model)


def remarks(lineup: Lineup, lengths: Sequence[int], rounds: int) -> list[str]:
    """Return the lines below the table: workload, and systems that were not measured."""
    lines = [
        f"{len(lengths)} texts, {sum(lengths)} tokens (median {statistics.median(lengths):g}, most "
        f"{max(lengths)}); medians of {rounds} rounds taken in turn; percentiles of all requests"
    ]
    lines += [f"not measured: {name}: {reason}" for name, reason in lineup.absent.items()]
    return lines


if __name__ == "__main__":
    main()
