"""Spans, arcs and scores of syntactic heads, through a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.syntax import Parsed, Score, read_conllu, run, table
from tests.journeys.conftest import running

FIXTURE = Path(__file__).with_name("syntax.conllu")
LAYERS, HEADS = 6, 12
WORDS = [
    "The animal did n't cross the street because it was too tired .",
    "She ca n't open all the ( old ) boxes .",
    "Tom reads books and Ann papers .",
    "I wanna wanna sleep unperturbedly .",
]
"""Text of each word's span."""


@pytest.fixture(scope="module")
def sentences() -> list[Parsed]:
    with FIXTURE.open(encoding="utf-8") as lines:
        return list(read_conllu(lines))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as url:
        yield url


def test_words_are_where_they_are_in_the_text(sentences):
    for sentence, words in zip(sentences, WORDS, strict=True):
        assert [sentence.text[start:end] for start, end in sentence.spans] == words.split()


def test_arcs_lack_the_root_and_subtypes(sentences):
    assert sentences[2].arcs == [
        (0, 1, "nsubj"),
        (2, 1, "obj"),
        (3, 4, "cc"),
        (4, 1, "conj"),
        (5, 4, "orphan"),
        (6, 1, "punct"),
    ]
    assert [arc for arc in sentences[1].arcs if arc[2] == "det"] == [(4, 9, "det"), (5, 9, "det")]


def test_a_word_that_is_not_in_its_text_is_an_error():
    with pytest.raises(ValueError, match="'b' is not at 2"):
        list(read_conllu(["# text = a c", "1\ta" + "\t_" * 8, "2\tb" + "\t_" * 8]))


def plain_guesses(sentence: Parsed, reference: Any) -> list[list[list[int]]]:
    """Return guesses [layer][head][word], computed word by word from transformers' weights."""
    tokenizer, model = reference
    inputs = tokenizer(sentence.text, return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    own = [
        [t for t, place in enumerate(offsets) if set(range(*place)) & set(range(*span))]
        for span in sentence.spans
    ]
    return [
        [
            [
                max(
                    range(len(own)),
                    key=lambda word: sum(head[q][k] for q in source for k in own[word]),
                )
                for source in own
            ]
            for head in layer[0].tolist()
        ]
        for layer in maps
    ]


@pytest.mark.e2e
def test_scores_are_those_of_a_plain_count(url, sentences, minilm_checkpoint):
    reference = (
        AutoTokenizer.from_pretrained(minilm_checkpoint),
        AutoModel.from_pretrained(minilm_checkpoint, attn_implementation="eager").eval(),
    )
    guessed = [plain_guesses(sentence, reference) for sentence in sentences]
    rows, counted = run(url, sentences, least=1)
    assert counted == len(sentences)
    relations = [arc[2] for sentence in sentences for arc in sentence.arcs]
    assert {row.relation: row.n for row in rows} == {r: relations.count(r) for r in relations}
    for row in rows:
        hits = {
            (layer + 1, head + 1): sum(
                looks[layer][head][dependent] == target
                for looks, sentence in zip(guessed, sentences, strict=True)
                for dependent, target, relation in sentence.arcs
                if relation == row.relation
            )
            for layer in range(LAYERS)
            for head in range(HEADS)
        }
        assert row.accuracy == pytest.approx(max(hits.values()) / row.n)
        assert hits[row.layer, row.head] == max(hits.values())


@pytest.mark.e2e
def test_offsets(url, sentences):
    rows, _ = run(url, sentences, least=4)
    found = {row.relation: (row.n, row.offset, row.offset_accuracy) for row in rows}
    assert found == {  # in words: the -> street, all -> boxes, n't -> cross, too -> tired, …
        "punct": (6, 1, pytest.approx(1 / 6)),
        "nsubj": (5, 3, pytest.approx(3 / 5)),
        "advmod": (4, 1, pytest.approx(3 / 4)),
        "det": (4, 1, pytest.approx(2 / 4)),
    }


def test_a_table():
    shown = table([Score("det", 541, 3, 9, 0.7948, 1, 0.5933)])
    assert shown.splitlines()[-1] == "| det | 541 | 3, 9 | 0.79 | +1 | 0.59 |"


@pytest.mark.e2e
def test_real_sentences(url, shared_data):
    with (shared_data / "en_ewt-ud-dev-400.conllu").open(encoding="utf-8") as lines:
        parsed = list(read_conllu(lines))
    rows, counted = run(url, parsed, least=1)
    assert counted == len(parsed) == 400
    found = {row.relation: row for row in rows}
    det, direct_object = found["det"], found["obj"]
    assert (det.n, det.layer, det.head) == (541, 3, 9)
    assert det.accuracy == pytest.approx(0.79, abs=0.02)
    assert det.offset_accuracy == pytest.approx(0.59, abs=0.02)
    assert (direct_object.layer, direct_object.head) == (3, 1)
    assert direct_object.accuracy == pytest.approx(0.68, abs=0.02)
    assert direct_object.offset_accuracy == pytest.approx(0.34, abs=0.02)
