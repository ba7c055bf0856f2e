"""Latency of a fleet of replicas under load, and machines for a stream or a corpus.

Run: python -m benchmarks.capacity latency [--loads 0.3 0.6] [--replicas 1 2 4]
     python -m benchmarks.capacity fleet --rate 100000
     python -m benchmarks.capacity corpus --texts 10000000000 --machines 100

Each takes `--batch-seconds`, `--token-seconds` and so on of your own replica; `--help` lists them.
The defaults describe the node of docs/operations.md.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence

from benchmarks.capacity.plan import Machine, Traffic, corpus, fleet
from benchmarks.capacity.simulation import Load, Node, Outcome, Simulation
from benchmarks.harness.report import markdown
from benchmarks.harness.rows import milliseconds, percentiles

SPREAD = 0.8
"""Standard deviation of the logarithm of a text's tokens."""
WARM_UP_SHARE = 0.1
"""Share of a simulation's requests that is left out: the fleet is not yet in its steady state."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one table."""
    options = _parser().parse_args(arguments)
    node = Node(
        options.batch_seconds,
        options.token_seconds,
        options.batch_tokens,
        options.front_seconds,
        options.engines,
    )
    print(options.table(options, node))
    return 0


def lengths(mean: float, longest: int = 512) -> Callable[[random.Random], int]:
    """Return a function that draws the tokens of a text: log-normal, and at most `longest`.

    The log-normal distribution is skewed as lengths of texts are.
    """
    middle = math.log(mean) - SPREAD**2 / 2

    def draw(chance: random.Random) -> int:
        return min(longest, max(1, round(chance.lognormvariate(middle, SPREAD))))

    return draw


def steady(outcome: Outcome) -> list[float]:
    """Return the latencies in the steady state of the fleet."""
    return outcome.latencies[int(WARM_UP_SHARE * len(outcome.latencies)) :]


def _latency(options: argparse.Namespace, node: Node) -> str:
    rows = []
    for replicas in options.replicas:
        for load in options.loads:
            rate = load * replicas * node.capacity(options.tokens)
            drawn = Load(rate, options.requests, lengths(options.tokens))
            outcome = Simulation([node] * replicas, drawn).run()
            seconds = steady(outcome)
            ranks = percentiles([1e3 * latency for latency in seconds]).values()
            rows.append(
                [
                    replicas,
                    f"{load:g}",
                    f"{rate:.0f}",
                    f"{1e3 * statistics.fmean(seconds):.1f}",
                    " / ".join(map(milliseconds, ranks)),
                    f"{statistics.fmean(outcome.batches):.1f}",
                    f"{statistics.fmean(outcome.busy):.2f}",
                ]
            )
    heads = ["replicas", "load", "requests/s", "mean, ms", "p50 / p90 / p99, ms"]
    return markdown([*heads, "texts a batch", "engines busy"], rows)


def _fleet(options: argparse.Namespace, node: Node) -> str:
    machine = Machine(node, int(options.memory_mib * 2**20), options.dollars_an_hour)
    traffic = Traffic(options.rate, options.tokens, options.request_bytes, options.reply_bytes)
    alone = options.utilization * node.capacity(options.tokens)
    load = Load(alone, options.requests, lengths(options.tokens))
    latency = statistics.fmean(steady(Simulation([node], load).run()))
    planned = fleet(
        machine,
        traffic,
        utilization=options.utilization,
        latency_seconds=latency,
        spare_share=options.spare_share,
    )
    rows = [
        ("requests/s of a replica at most", f"{node.capacity(options.tokens):.0f}"),
        (f"of them at a utilization of {options.utilization:g}", f"{alone:.0f}"),
        ("mean latency there", f"{1e3 * latency:.0f} ms"),
        ("replicas", f"{planned.replicas:,}, of them {planned.spare:,} to spare"),
        ("memory of all", f"{planned.memory_bytes / 2**30:,.0f} GiB"),
        ("received / sent", f"{_gigabits(planned.received_bits)} / {_gigabits(planned.sent_bits)}"),
        ("requests in flight", f"{planned.in_flight:,.0f}"),
        ("dollars a month", f"{planned.dollars_a_month:,.0f}"),
    ]
    return markdown(["what", "how much"], rows)


def _corpus(options: argparse.Namespace, node: Node) -> str:
    machine = Machine(node, int(options.memory_mib * 2**20), options.dollars_an_hour)
    planned = corpus(
        machine,
        texts=options.texts,
        tokens=options.tokens,
        machines=options.machines,
        efficiency=options.efficiency,
        features=options.features,
    )
    rows = [
        ("texts/s of a machine", f"{options.texts / planned.machine_hours / 3600:.0f}"),
        ("machine hours", f"{planned.machine_hours:,.0f}"),
        (f"days on {options.machines:,} machines", f"{planned.days:,.1f}"),
        ("dollars", f"{planned.dollars:,.0f}"),
        ("vectors, float32", f"{planned.stored_bytes / 2**40:,.1f} TiB"),
    ]
    return markdown(["what", "how much"], rows)


def _gigabits(bits: float) -> str:
    return f"{bits / 1e9:,.2f} Gbit/s"


def _parser() -> argparse.ArgumentParser:
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=description)
    node = argparse.ArgumentParser(add_help=False)
    for name, default, description in (
        ("batch-seconds", 0.0005, "constant seconds of a batch"),
        ("token-seconds", 0.00027, "seconds that each token adds to a batch"),
        ("front-seconds", 0.0005, "seconds to read, tokenise and write a request"),
        ("tokens", 40.0, "mean tokens of a text"),
        ("memory-mib", 300.0, "memory of a replica"),
        ("dollars-an-hour", 0.08, "price of a machine; a guess"),
    ):
        node.add_argument(
            f"--{name}", type=float, default=default, help=f"{description} (%(default)g)"
        )
    node.add_argument("--batch-tokens", type=int, default=512, help="maximum tokens of a batch")
    node.add_argument("--engines", type=int, default=2, help="batches computed at the same time")
    node.add_argument("--requests", type=int, default=50_000, help="requests of each simulation")
    tables = parser.add_subparsers(required=True)

    latency = tables.add_parser("latency", parents=[node], help="latency by load and replicas")
    latency.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    latency.add_argument("--loads", type=float, nargs="+", default=[0.3, 0.6, 0.8, 0.9])
    latency.set_defaults(table=_latency)

    stream = tables.add_parser("fleet", parents=[node], help="fleet for a stream of requests")
    stream.add_argument("--rate", type=float, default=100_000.0, help="requests a second")
    stream.add_argument(
        "--utilization", type=float, default=0.6, help="maximum utilization of a replica"
    )
    stream.add_argument(
        "--spare-share",
        type=float,
        default=1 / 3,
        help="share of replicas that may be away at once",
    )
    stream.add_argument("--request-bytes", type=int, default=450, help="with its headers")
    stream.add_argument("--reply-bytes", type=int, default=2_500, help="with its headers")
    stream.set_defaults(table=_fleet)

    texts = tables.add_parser("corpus", parents=[node], help="work of encoding a corpus once")
    texts.add_argument("--texts", type=int, default=10**10)
    texts.add_argument("--machines", type=int, default=100)
    texts.add_argument(
        "--efficiency",
        type=float,
        default=0.9,
        help="share of a machine's capacity that is reached",
    )
    texts.add_argument("--features", type=int, default=384, help="features of a vector")
    texts.set_defaults(table=_corpus)
    return parser


if __name__ == "__main__":
    sys.exit(main())
