"""Retrieval: chunks of whole texts against chunks alone, and vectors of one byte or one bit.

Run: python -m benchmarks.retrieval [--model NAME] [--size N …] [--sts FILE]. The documents are the
topics of Python's language reference, which every CPython has (`pydoc_data.topics`). Of each long
paragraph, the first sentence is taken out and becomes a query; the chunk in which the rest of the
paragraph begins is its answer. So no query is part of a document. A service with the default model,
or the one named, computes all vectors over HTTP.

Recall is the share of queries whose answer is among the k most similar chunks of all documents.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.harness.report import markdown
from headscope import Client
from testing.process import Service
from tests.sts import read_pairs, sentences

Vectors = NDArray[np.float32]
LEAST_WORDS = 30
"""Minimum number of words of a paragraph that gives a query."""
QUERY_WORDS = range(8, 41)
"""Numbers of words that a query may have."""
LEAST_DOCUMENT = 300
"""Minimum number of words of a document."""
RANKS = (1, 5, 10)
PART_TEXTS = 128
"""Texts of a request, which has to be answered within its deadline."""
SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z“\"])")


@dataclass(frozen=True)
class Document:
    """Text without its queries, and each query with the start of its answer."""

    text: str
    queries: list[tuple[str, int]]


def documents() -> list[Document]:
    """Return the reference's topics, each paragraph only in the first topic that has it."""
    seen: set[str] = set()
    found = []
    for _, topic in sorted(topics.items()):
        paragraphs = [" ".join(part.split()) for part in topic.split("\n\n")]
        fresh = [part for part in paragraphs if part and part not in seen]
        seen.update(fresh)
        if len(" ".join(fresh).split()) >= LEAST_DOCUMENT:
            found.append(_document(fresh))
    return found


def _document(paragraphs: Sequence[str]) -> Document:
    kept, queries, length = [], [], 0
    for paragraph in paragraphs:
        first, *rest = SENTENCE.split(paragraph, maxsplit=1)
        body = paragraph
        if rest and len(paragraph.split()) >= LEAST_WORDS and len(first.split()) in QUERY_WORDS:
            body = rest[0]
            queries.append((first, length))
        kept.append(body)
        length += len(body) + 2
    return Document("\n\n".join(kept), queries)


def chunk_vectors(
    client: Client, found: Sequence[Document], size: int, *, late: bool
) -> tuple[Vectors, list[list[tuple[int, int]]]]:
    """Return the vectors of all documents' chunks, and the chunks of each document."""
    vectors, chunks = [], []
    for document in found:
        chunk = {"by": "sentences", "size": size, "overlap": 0, "late": late}
        fields = {"overflow": "windows"} if late else {}
        (encoding,) = client.encode([document.text], chunk=chunk, **fields)
        vectors.append(encoding.span_vectors)
        chunks.append([(int(start), int(end)) for start, end in encoding.spans])
    return np.concatenate(vectors), chunks


def answers(found: Sequence[Document], chunks: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """Return the row of each query's answer: the chunk in which its place begins."""
    rows, first = [], 0
    for document, own in zip(found, chunks, strict=True):
        ends = [end for _, end in own]
        rows += [
            first + next(row for row, end in enumerate(ends) if end > place)
            for _, place in document.queries
        ]
        first += len(own)
    return rows


def recalls(similarities: Vectors, rows: Sequence[int]) -> dict[int, float]:
    """Return the recall at each of `RANKS`.

    Args:
        similarities: similarity of each query and chunk `[queries, chunks]`.
        rows: row of the answer of each query.

    """
    own = similarities[np.arange(len(rows)), rows][:, None]
    rank = (similarities > own).sum(axis=1)
    return {most: float((rank < most).mean()) for most in RANKS}


def late_chunks(client: Client, sizes: Sequence[int]) -> str:
    """Return the recall of late chunks and of chunks alone, by the size of the chunks."""
    found = documents()
    queries = [query for document in found for query, _ in document.queries]
    of_queries = client.embed(queries)
    rows = []
    for size in sizes:
        for late in (False, True):
            vectors, chunks = chunk_vectors(client, found, size, late=late)
            recall = recalls(of_queries @ vectors.T, answers(found, chunks))
            name = "late" if late else "alone"
            rows.append((str(size), name, str(len(vectors)), *(f"{recall[k]:.3f}" for k in RANKS)))
    heads = ("tokens of a chunk", "chunks", "number", *(f"recall@{k}" for k in RANKS))
    return markdown(heads, rows)


def as_numbers(vectors: NDArray[np.generic]) -> Vectors:
    """Return stored vectors as numbers whose products compare them; bits become −1 and 1."""
    if vectors.dtype == np.uint8:
        return 2 * np.unpackbits(vectors, axis=1).astype(np.float32) - 1
    return vectors.astype(np.float32)


def small_vectors(client: Client, sts: Path | None, size: int) -> str:
    """Return what vectors of one byte or one bit keep of float32's ranking."""
    found = documents()
    _, chunks = chunk_vectors(client, found, size, late=False)
    pairs = zip(found, chunks, strict=True)
    texts = [document.text[start:end] for document, own in pairs for start, end in own]
    queries = [query for document in found for query, _ in document.queries]
    expected = answers(found, chunks)
    scored = read_pairs(sts) if sts else []
    exact = _similarities(client, queries, texts, "float32")
    best = np.argsort(-exact, axis=1)[:, :10]
    rows = []
    for kind in ("float32", "float16", "int8", "ubinary"):
        similarities = _similarities(client, queries, texts, kind)
        own = np.argsort(-similarities, axis=1)[:, :10]
        kept = np.mean([len({*one} & {*other}) / 10 for one, other in zip(own, best, strict=True)])
        correlation = "" if not scored else f"{100 * _spearman(client, scored, kind):.2f}"
        recall = recalls(similarities, expected)[10]
        rows.append((kind, f"{kept:.3f}", f"{recall:.3f}", correlation))
    return markdown(
        ("vector_type", "of float32's first ten", "recall@10", "STS-B, Spearman × 100"), rows
    )


def _embedded(client: Client, texts: Sequence[str], kind: str) -> Vectors:
    parts = [texts[at : at + PART_TEXTS] for at in range(0, len(texts), PART_TEXTS)]
    vectors = [client.embed(part, vector_type=kind, truncate=True) for part in parts]
    return as_numbers(np.concatenate(vectors))


def _similarities(
    client: Client, queries: Sequence[str], texts: Sequence[str], kind: str
) -> Vectors:
    """Return the cosines of stored vectors; of bits, this orders as the Hamming distance does."""
    one, other = _embedded(client, queries, kind), _embedded(client, texts, kind)
    lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    similarities: Vectors = one @ other.T / lengths
    return similarities


def _spearman(client: Client, scored: Sequence[tuple[str, str, float]], kind: str) -> float:
    both = _embedded(client, sentences(scored), kind)
    both /= np.linalg.norm(both, axis=1)[:, None]
    first, second = np.split(both, 2)
    return float(spearmanr((first * second).sum(axis=1), [score for *_, score in scored])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="by default the default model")
    parser.add_argument("--size", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--sts", type=Path, help="CSV file of sentence,sentence,score")
    options = parser.parse_args()
    chosen = ["--model", options.model] if options.model else []
    with Service.of_headscope("--log-level", "error", *chosen) as service:
        service.wait_until_ready()
        with Client(f"http://127.0.0.1:{service.port}") as client:
            print(late_chunks(client, options.size))
            print()
            print(small_vectors(client, options.sts, options.size[-1]))


if __name__ == "__main__":
    main()
