"""Pooled vectors of the calibration texts against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import VECTOR_MODULES, Artifact
from model.artifact.sentence import SentenceConfig
from model.artifact.vectors import CALIBRATION
from model.checkpoint import load_checkpoint
from model.export.calibration import TEXTS
from model.export.samples import TextSamples
from model.export.tensors import calibration_vectors


def test_an_artifact_records_the_vectors_of_all_calibration_texts(
    tiny_artifact: Artifact, tiny_checkpoint: Path
) -> None:
    found = load_file(tiny_artifact.path(VECTOR_MODULES))[CALIBRATION]
    sentence = tiny_artifact.manifest.sentence
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = AutoModel.from_pretrained(tiny_checkpoint).eval()
    assert (len(found), sentence.pooling) == (len(lines), "mean")
    for line, vector in zip(lines, found, strict=True):
        ids = tokenizer(line, truncation=True, max_length=sentence.max_length, return_tensors="pt")
        with torch.no_grad():
            expected = model(**ids).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_a_tokenizer_without_tokens_gives_no_vectors(
    tiny_artifact: Artifact, tiny_checkpoint: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_artifact.path("tokenizer.json")))
    tokenizer.encode_batch = lambda _: []  # type: ignore[method-assign]
    encoder = load_checkpoint(tiny_checkpoint)
    sentence = SentenceConfig(max_length=9)
    samples = TextSamples(tokenizer, encoder.config, sentence)
    found = calibration_vectors(encoder, samples, sentence, {})
    assert found.shape == (0, encoder.config.hidden_size)
