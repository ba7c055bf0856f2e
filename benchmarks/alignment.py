"""Alignment error rates of `POST /align` on hand-aligned sentences, by method and layer.

Every sentence goes through HTTP with its words as spaces part them. Och and Ney 2003, section 4
(https://aclanthology.org/J03-1002): of alignments A, sure ones S and possible ones P ⊇ S,

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    text    a pair a line, `source ||| target`
    gold    a pair a line, `i-j` of sure words and `ipj` of possible ones
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.report import markdown
from headscope import Client

METHODS = ("mutual", "itermax", "softmax")
LINK = re.compile(r"(\d+)([-p?])(\d+)")
Links = set[tuple[int, int]]


@dataclass(frozen=True)
class Aligned:
    """A pair of sentences, aligned by hand."""

    source: str
    target: str
    sure: Links
    possible: Links
    """Sure ones among them."""


@dataclass(frozen=True)
class Score:
    """How well all pairs are aligned."""

    method: str
    layer: int | None
    precision: float
    recall: float
    error_rate: float


def read(texts: Iterable[str], gold: Iterable[str], first: int) -> Iterator[Aligned]:
    """Pairs of sentences, whose words count from `first` in the gold alignments."""
    for text, line in zip(texts, gold, strict=True):
        source, target = (" ".join(side.split()) for side in text.split("|||"))
        links: dict[str, Links] = {"-": set(), "p": set()}
        for i, kind, j in LINK.findall(line):
            links["-" if kind == "-" else "p"].add((int(i) - first, int(j) - first))
        yield Aligned(source, target, links["-"], links["-"] | links["p"])


def score(pairs: Sequence[Aligned], found: Sequence[Links]) -> tuple[float, float, float]:
    """Precision, recall and alignment error rate."""
    links = sum(map(len, found))
    sure = sum(len(one.sure) for one in pairs)
    of_sure = sum(len(one & pair.sure) for pair, one in zip(pairs, found, strict=True))
    of_possible = sum(len(one & pair.possible) for pair, one in zip(pairs, found, strict=True))
    rate = 1 - (of_sure + of_possible) / (links + sure)
    return of_possible / max(links, 1), of_sure / max(sure, 1), rate


def run(
    client: Client, pairs: Sequence[Aligned], layers: Sequence[int], methods: Sequence[str]
) -> Iterator[Score]:
    """Every method of every layer; cross-attention's one mean."""
    texts = [(pair.source, pair.target) for pair in pairs]
    for method in methods:
        for layer in [None] if method == "cross" else layers:
            asked: dict[str, Any] = {} if layer is None else {"layer": layer}
            found = client.align(texts, method=method, split="spaces", truncate=True, **asked)
            links = [{(link.source, link.target) for link in one.links} for one in found]
            yield Score(method, layer, *score(pairs, links))


def table(rows: Sequence[Score]) -> str:
    """Error rates as Markdown, a row a layer and a column a method."""
    methods = list(dict.fromkeys(row.method for row in rows))
    layers = list(dict.fromkeys(row.layer for row in rows))
    rates = {(row.layer, row.method): f"{100 * row.error_rate:.1f}" for row in rows}
    cells = [
        ("" if layer is None else layer, *(rates.get((layer, method), "") for method in methods))
        for layer in layers
    ]
    return markdown(("layer", *methods), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="pairs, `source ||| target`")
    parser.add_argument("gold", type=Path, help="their alignments, `1-1 2p3`")
    parser.add_argument("--url", required=True, help="of a running service")
    parser.add_argument("--first", type=int, default=1, help="what words are counted from")
    parser.add_argument("--layers", type=int, nargs="*", help="hidden states; all by default")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    options = parser.parse_args()
    with (
        options.text.open(encoding="utf-8") as texts,
        options.gold.open(encoding="utf-8") as gold,
        Client(options.url, timeout=3600) as client,
    ):
        pairs = list(read(texts, gold, options.first))
        layers = (
            range((client.info().layers or 0) + 1) if options.layers is None else options.layers
        )
        rows = list(run(client, pairs, layers, options.methods))
    print(f"{len(pairs)} pairs, AER in percent\n\n{table(rows)}\n")
    best = min(rows, key=lambda row: row.error_rate)
    print(f"best: {best}")


if __name__ == "__main__":
    main()
