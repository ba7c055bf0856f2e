from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.artifact.manifest import TOKENIZER, Artifact
from model.export.calibration import TEXTS, calibration_batches

LINES = TEXTS.read_text(encoding="utf-8").splitlines()


def tokenizer_of(artifact: Artifact) -> Tokenizer:
    return Tokenizer.from_file(str(artifact.path(TOKENIZER)))


@pytest.mark.parametrize("max_length", [8, 40])
def test_every_line_and_all_in_one_are_tokenized_as_transformers_does(
    tiny_artifact: Artifact, tiny_checkpoint: Path, max_length: int
) -> None:
    batches = list(calibration_batches(tokenizer_of(tiny_artifact), max_length))
    found = [
        batch.input_ids[start:end].tolist()
        for batch in batches
        for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True)
    ]
    reference = AutoTokenizer.from_pretrained(tiny_checkpoint)
    texts = [*LINES, " ".join(LINES)]
    assert found == reference(texts, truncation=True, max_length=max_length)["input_ids"]
    assert len(found[-1]) == max_length  # texts reach the last position
    assert {len(batch.padded_index) for batch in batches[:-1]} == {16}


def test_the_tokenizer_is_left_without_truncation(tiny_artifact: Artifact) -> None:
    tokenizer = tokenizer_of(tiny_artifact)
    list(calibration_batches(tokenizer, 8))
    assert tokenizer.truncation is None


def test_the_texts_are_many_and_of_many_lengths() -> None:
    words = [len(line.split()) for line in LINES]
    assert len(set(LINES)) == len(LINES) >= 100
    assert min(words) >= 1
    assert min(words) <= 3
    assert max(words) >= 50


def test_no_text_is_among_those_that_quality_is_measured_on(shared_data: Path) -> None:
    with (shared_data / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
        measured = {text.strip().lower() for row in csv.reader(file) for text in row[:2]}
    assert not measured & {line.strip().lower() for line in LINES}
