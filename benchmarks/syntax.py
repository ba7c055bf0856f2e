"""Accuracy of attention heads at finding a word's syntactic head, relation by relation.

Each parsed sentence goes through HTTP, its maps over tokens become maps over the treebank's words
(weights summed over a target's tokens, averaged over a source's: Clark et al. 2019, section 4.1),
and the largest weight of a word's row is the guess. Terms:

    arcs        every word but the root, by its relation without subtype (`det:predet` is `det`);
                words of multiword tokens count, empty nodes do not
    guess       the word with the largest weight in the dependent's row: any word, punctuation and
                the dependent itself among them, but no special token
    best head   of all layers and heads, the one with the most right guesses for the relation
    best offset the most frequent distance in words between dependent and head, always guessed

Both are chosen on the sentences they are scored on: an offset out of tens, a head out of L·N.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import markdown
from benchmarks.harness.servers import artifact_of, headscope, running
from headscope import Reply, attentions, merge

TEXTS_PER_REQUEST = 16
ID, FORM, HEAD, RELATION, MISC = 0, 1, 6, 7, 9


@dataclass(frozen=True)
class Parsed:
    """Parsed sentence of W words."""

    text: str
    spans: list[tuple[int, int]]
    """Start and end of each word in the text."""
    arcs: list[tuple[int, int, str]]
    """Indices of the dependent word and of its head, and the relation."""


@dataclass(frozen=True)
class Score:
    """Accuracy of one relation; layer and head are counted from 1."""

    relation: str
    n: int
    layer: int
    head: int
    accuracy: float
    offset: int
    offset_accuracy: float


def read_conllu(lines: Iterable[str]) -> Iterator[Parsed]:
    """Yield the sentences of a CoNLL-U file, https://universaldependencies.org/format.html.

    Raises:
        ValueError: a word is not at its place in the sentence's `# text`.

    """
    stripped = (line.rstrip("\r\n") for line in lines)
    for filled, group in itertools.groupby(stripped, key=bool):
        if filled:
            yield parse(list(group))


def parse(lines: Sequence[str]) -> Parsed:
    """Parse one sentence's lines."""
    comment = "# text = "
    text = next(line.removeprefix(comment) for line in lines if line.startswith(comment))
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    words = [row for row in rows if row[ID].isdecimal()]
    spans: list[tuple[int, int]] = []
    end, inside = 0, 0
    for row in rows:
        if "." in row[ID] or (row[ID].isdecimal() and int(row[ID]) <= inside):
            continue
        start = end + len(text[end:]) - len(text[end:].lstrip())
        end = start + len(row[FORM])
        if text[start:end] != row[FORM]:
            raise ValueError(f"{row[FORM]!r} is not at {start} of {text!r}")
        first, _, last = row[ID].partition("-")
        inside = int(last or first)
        spans += cut((start, end), row[FORM], words[int(first) - 1 : inside])
    arcs = [
        (dependent, int(row[HEAD]) - 1, row[RELATION].partition(":")[0])
        for dependent, row in enumerate(words)
        if int(row[HEAD]) > 0
    ]
    return Parsed(text, spans, arcs)


def cut(
    span: tuple[int, int], form: str, words: Sequence[Sequence[str]]
) -> Iterator[tuple[int, int]]:
    """Yield each word's span: consecutive if the words spell the token, else the token's span."""
    spelt = "".join(word[FORM] for word in words) == form
    start, _ = span
    for word in words:
        yield (start, start + len(word[FORM])) if spelt else span
        start += len(word[FORM]) if spelt else 0


def guesses(sentence: Parsed, reply: Reply) -> NDArray[np.intp] | None:
    """Return each word's guess, `[L, N, W]`; None if a word has no token.

    A token that reaches into two words (can|n't is `can ' t`) belongs to both.
    """
    groups = [
        [token for token, (a, b) in enumerate(reply.offsets) if a < end and b > start]
        for start, end in sentence.spans
    ]
    return merge(reply.weights, groups).argmax(axis=-1) if all(groups) else None


def score(
    sentences: Sequence[Parsed], guessed: Sequence[NDArray[np.intp]], least: int
) -> list[Score]:
    """Return a row for each relation that occurs `least` times or more, the most frequent first."""
    matches: defaultdict[str, list[NDArray[np.bool_]]] = defaultdict(list)
    offsets: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for sentence, looks in zip(sentences, guessed, strict=True):
        for dependent, head, relation in sentence.arcs:
            matches[relation].append(looks[:, :, dependent] == head)
            offsets[relation][head - dependent] += 1
    rows = []
    for relation, hits in sorted(matches.items(), key=lambda item: (-len(item[1]), item[0])):
        n = len(hits)
        accuracies = np.mean(hits, axis=0)
        layer, head = np.unravel_index(accuracies.argmax(), accuracies.shape)
        offset, count = max(offsets[relation].items(), key=lambda item: (item[1], -abs(item[0])))
        best = float(accuracies.max())
        rows.append(Score(relation, n, int(layer) + 1, int(head) + 1, best, offset, count / n))
    return [row for row in rows if row.n >= least]


def table(rows: Sequence[Score]) -> str:
    """Return the scores as a Markdown table."""
    heads = ("relation", "n", "best head (layer, head; from 1)", "accuracy", "best offset")
    cells = [
        (
            row.relation,
            row.n,
            f"{row.layer}, {row.head}",
            f"{row.accuracy:.2f}",
            f"{row.offset:+d}",
            f"{row.offset_accuracy:.2f}",
        )
        for row in rows
    ]
    return markdown((*heads, "accuracy"), cells)


def run(url: str, sentences: Sequence[Parsed], least: int) -> tuple[list[Score], int]:
    """Return the scores, and the number of sentences without a word that has no token."""
    counted, guessed = [], []
    for start in range(0, len(sentences), TEXTS_PER_REQUEST):
        batch = sentences[start : start + TEXTS_PER_REQUEST]
        replies = attentions(url, [sentence.text for sentence in batch], truncate=True)
        for sentence, reply in zip(batch, replies, strict=True):
            looks = guesses(sentence, reply)
            if looks is not None:
                counted.append(sentence)
                guessed.append(looks)
    return score(counted, guessed, least), len(counted)


@contextlib.contextmanager
def service(url: str | None) -> Iterator[str]:
    """Yield the given URL, or the URL of a started service of the default model."""
    if url is not None:
        yield url
        return
    server = headscope("headscope", "fp32", artifact_of("fp32"))
    with running(server, "a text") as started:
        yield started.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="parsed sentences, CoNLL-U")
    parser.add_argument("--url", help="URL of a running service; by default one is started")
    parser.add_argument("--least", type=int, default=50, help="minimum number of a relation's arcs")
    options = parser.parse_args()
    with options.file.open(encoding="utf-8") as lines:
        sentences = list(read_conllu(lines))
    with service(options.url) as url:
        rows, counted = run(url, sentences, options.least)
    print(f"{counted} of {len(sentences)} sentences\n\n{table(rows)}")


if __name__ == "__main__":
    main()
