"""Workloads: texts differ, are spread over their source, and have the stated lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from benchmarks.harness.texts import mixed, mixed_lengths, of_length, read_workload, texts_of


def tokenizer_of(checkpoint: Path):
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


@pytest.mark.slow
def test_the_workload_is_many_different_texts():
    texts = read_workload(None, 2000)
    assert len(texts) == len(set(texts)) == 2000


def test_a_workload_is_spread_over_its_file(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"text {i % 10}"}) for i in range(30)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_workload(path, 5) == [f"text {i}" for i in (0, 2, 4, 6, 8)]
    assert len(read_workload(path, 100)) == 10


def test_texts_of_a_length_differ():
    words = [f"word{i}" for i in range(50)]
    texts = texts_of(16, 20, words)
    assert {len(text.split()) for text in texts} == {14}
    assert len(set(texts)) == 20


def test_lengths_are_those_of_real_texts():
    lengths = mixed_lengths(2000)
    assert np.median(lengths) == 30
    assert lengths.mean() == pytest.approx(41, abs=1)
    assert np.percentile(lengths, 99) == pytest.approx(175, abs=6)
    assert 240 <= lengths.max() <= 244
    assert (mixed_lengths(2000) == lengths).all()
    assert (np.diff(lengths) > 0).any()
    assert (np.diff(lengths) < 0).any()


def test_a_workload_knows_its_tokens(checkpoint: Path, tmp_path: Path):
    reference = AutoTokenizer.from_pretrained(checkpoint)
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in ("a", "the cat", "x" * 99)))
    tokenizer = tokenizer_of(checkpoint)
    made = of_length(12, 120, tokenizer), mixed(30, tokenizer, 50, None)
    for workload in (*made, mixed(7, tokenizer, 50, path)):
        tokens = [min(len(ids), 50) for ids in reference(workload.texts)["input_ids"]]
        assert tokens == workload.lengths
    assert made[0].lengths == [12] * 10
    assert len(made[1].texts) == 30
    assert workload.lengths == [3, 4, 50, 3, 4, 50, 3]
    assert workload.mean_tokens == pytest.approx(117 / 7)
