"""Alignment error rates of `POST /align` on hand-aligned sentences, by method and layer.

Words are separated by spaces. Och and Ney 2003, section 4 (https://aclanthology.org/J03-1002): of
alignments A, sure ones S and possible ones P ⊇ S,

    AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)

    text    a pair a line, `source ||| target`
    gold    a pair a line, `i-j` of sure words and `ipj` of possible ones

With an artifact every text is encoded once, in this process, and every method aligns the vectors of
every layer; with a service each pair goes through HTTP for each method, at its default layer, and
for `cross` at each layer of the decoder.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.report import markdown
from headscope import Client
from headscope.fields import AlignFields
from model.artifact.manifest import TOKENIZER, Artifact, load_artifact
from service.engines.contract import TextTask
from service.engines.onnx import OnnxEngine
from service.inference.alignment.matching import (
    VECTOR_METHODS,
    VectorMethod,
    lift,
    match_vectors,
)
from service.inference.alignment.words import aligned_text
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer

PAIRS_PER_REQUEST = 16
LINK = re.compile(r"(\d+)([-p?])(\d+)")
Links = set[tuple[int, int]]


@dataclass(frozen=True)
class Aligned:
    """A pair of sentences, aligned by hand."""

    source: str
    target: str
    sure: Links
    possible: Links
    """Possible links, sure links included."""


@dataclass(frozen=True)
class Score:
    """Quality of a method's alignments of all pairs, by the vectors or maps of one layer."""

    method: str
    layer: int | None
    precision: float
    recall: float
    error_rate: float


def read(texts: Iterable[str], gold: Iterable[str], first: int) -> Iterator[Aligned]:
    """Yield the pairs of sentences; the gold alignments number words from `first`."""
    for text, line in zip(texts, gold, strict=True):
        source, target = (" ".join(side.split()) for side in text.split("|||"))
        links: dict[str, Links] = {"-": set(), "p": set()}
        for i, kind, j in LINK.findall(line):
            links["-" if kind == "-" else "p"].add((int(i) - first, int(j) - first))
        yield Aligned(source, target, links["-"], links["-"] | links["p"])


def score(pairs: Sequence[Aligned], predicted: Sequence[Links]) -> tuple[float, float, float]:
    """Return precision, recall and alignment error rate of the predicted links of each pair."""
    links = sum(map(len, predicted))
    sure = sum(len(one.sure) for one in pairs)
    of_sure = sum(len(one & pair.sure) for pair, one in zip(pairs, predicted, strict=True))
    of_possible = sum(len(one & pair.possible) for pair, one in zip(pairs, predicted, strict=True))
    rate = 1 - (of_sure + of_possible) / (links + sure)
    return of_possible / max(links, 1), of_sure / max(sure, 1), rate


def ask(client: Client, pairs: Sequence[Aligned], methods: Sequence[str]) -> Iterator[Score]:
    """Yield the score of each method of a running service, and of each layer for `cross`."""
    texts = [(pair.source, pair.target) for pair in pairs]
    depth = client.info().decoder_layers or 0
    for method in methods:
        for layer in (None, *(range(depth) if method == "cross" else ())):
            chosen = AlignFields() if layer is None else AlignFields(layers=[layer])
            links: list[Links] = []
            for start in range(0, len(texts), PAIRS_PER_REQUEST):
                batch = texts[start : start + PAIRS_PER_REQUEST]
                alignments = client.align(
                    batch, method=method, split="spaces", truncate=True, **chosen
                )
                links += [{(link.source, link.target) for link in one.links} for one in alignments]
            yield Score(method, layer, *score(pairs, links))


def compute(
    artifact: Artifact, pairs: Sequence[Aligned], methods: Sequence[VectorMethod]
) -> Iterator[Score]:
    """Yield the score of each method at each layer, computed by the service's functions."""
    manifest, engine = artifact.manifest, OnnxEngine(artifact, "cpu")
    limits = Limits(manifest.sentence.max_length, sys.maxsize)
    tokenizer = TextTokenizer(artifact.path(TOKENIZER), manifest.sentence, limits)
    layers = tuple(range(manifest.config.num_hidden_layers + 1))
    links: dict[tuple[VectorMethod, int], list[Links]] = defaultdict(list)
    for pair in pairs:
        texts = (pair.source, pair.target)
        tokenized = tokenizer.tokenize(texts, Options(truncate=True))
        tasks = [TextTask(one.input_ids, one.segment_ids, layers) for one in tokenized]
        words = [aligned_text(*one, "spaces") for one in zip(texts, tokenized, strict=True)]
        states = [output.hidden for output in engine.run(tasks)]
        for layer, hidden in enumerate(zip(*states, strict=True)):
            vectors = [own[one.tokens] for own, one in zip(hidden, words, strict=True)]
            for method in methods:
                aligned, _ = lift(match_vectors(*vectors, method), *words)
                rows, columns = aligned.nonzero()
                every = zip(words[0].worded[rows], words[1].worded[columns], strict=True)
                links[method, layer].append({(int(i), int(j)) for i, j in every})
    for (method, layer), found in links.items():
        yield Score(method, layer, *score(pairs, found))


def table(rows: Sequence[Score]) -> str:
    """Return a Markdown table of error rates, a row a layer and a column a method."""
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
    served = parser.add_mutually_exclusive_group(required=True)
    served.add_argument("--artifact", type=Path, help="artifact of an encoder")
    served.add_argument("--url", help="URL of a running service")
    parser.add_argument(
        "--first", type=int, default=1, help="number of a sentence's first word in `gold`"
    )
    parser.add_argument("--methods", nargs="*", default=VECTOR_METHODS)
    options = parser.parse_args()
    with options.text.open(encoding="utf-8") as texts, options.gold.open(encoding="utf-8") as gold:
        pairs = list(read(texts, gold, options.first))
    if options.artifact:
        rows = list(compute(load_artifact(options.artifact), pairs, options.methods))
    else:
        with Client(options.url, timeout=3600) as client:
            rows = list(ask(client, pairs, options.methods))
    print(f"{len(pairs)} pairs, AER in percent\n\n{table(rows)}\n")
    print(f"best: {min(rows, key=lambda row: row.error_rate)}")


if __name__ == "__main__":
    main()
