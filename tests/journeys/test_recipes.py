"""The code of docs/recipes.md and docs/coming-from.md, run as it stands."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

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
    """With a ranker beside the encoder, whose scores are made up of its ids."""
    encoder = minilm("fp32")
    ranker = variant(encoder, "a/ranker", encoder.manifest.config.hidden_size, RANKS)
    engines = [OnnxEngine(encoder, "cpu", threads=1), ScoringEngine(ranker.manifest.config)]
    with listening([encoder, ranker], engines) as (_, port):
        names = names_after(code_of("recipes", "Reranking"), f"http://127.0.0.1:{port}")
    shown = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    assert {text for _, text in shown} == {*names["passages"]}
    scores = [float(score) for score, _ in shown]
    assert scores == sorted(scores, reverse=True)


def test_why_two_texts_are_alike(server, capsys):
    names_after(code_of("recipes", "Why are two texts alike?"), server)
    assert re.search(r"the most focused head: \(\d, \d+\)", capsys.readouterr().out)


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
