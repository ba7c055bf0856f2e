"""BM42 against its recipe with transformers' own attention, and words by hand."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from model.artifact.manifest import Artifact
from service.engines.fake import FakeEngine
from service.inference.bm42 import STOP_WORDS, sparse_vector, word_weights
from service.inference.tokenization.tokenizer import TextTokenizer
from tests.service.harness import serving

pytestmark = pytest.mark.anyio


TEXTS = ["The cats of Bamberg were running!", "running cats, unbelievable tokenization"]
STEMS = {
    "cats": ("cat", 1_751_422_759),
    "bamberg": ("bamberg", 1_222_938_780),
    "running": ("run", 243_905_464),
    "unbelievable": ("unbeliev", 1_099_079_959),
    "tokenization": ("token", 362_932_159),
}
"""Stem of each word, and the absolute value of the stem's hash by mmh3."""


def by_hand(folder: Path, text: str) -> dict[int, float]:
    """Return values by index; a word's tokens lie within its characters."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    encoding = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoding.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        looks = model.eval()(**encoding, output_attentions=True).attentions[-1][0, :, 0].mean(0)
    values = {}
    for word, (_, index) in STEMS.items():
        start = text.lower().find(word)
        if start >= 0:
            inside = [start <= a < b <= start + len(word) for a, b in offsets]
            values[index] = math.sqrt(math.log1p(float(looks[torch.tensor(inside)].sum())))
    return values


async def test_the_recipe_by_hand(client: httpx.AsyncClient, small_checkpoint: Path) -> None:
    body = {"inputs": TEXTS, "method": "bm42"}
    response = await client.post("/embed_sparse", json=body)
    assert response.status_code == 200
    for found, text in zip(response.json(), TEXTS, strict=True):
        assert {one["index"]: one["value"] for one in found} == pytest.approx(
            by_hand(small_checkpoint, text), abs=1e-5
        )
        assert [one["index"] for one in found] == sorted(one["index"] for one in found)


async def test_other_tokenizers_are_a_424(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = TextTokenizer.__init__

    def without_words(self: TextTokenizer, *given: object) -> None:
        whole(self, *given)  # type: ignore[arg-type]
        self.word_pieces = False

    monkeypatch.setattr(TextTokenizer, "__init__", without_words)
    async with serving(artifact, FakeEngine(artifact.manifest.config)) as client:
        response = await client.post("/embed_sparse", json={"inputs": "a", "method": "bm42"})
    assert response.status_code == 424
    assert "no WordPiece tokenizer" in response.json()["error"]


async def test_another_method_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/embed_sparse", json={"inputs": "a", "method": "bm25"})
    assert response.status_code == 422


SPECIAL = {"[CLS]", "[SEP]", "[UNK]"}
TOKENS = [
    "[CLS]",
    "the",
    "cat",
    "##s",
    "run",
    "##ning",
    "!",
    "[UNK]",
    "cat",
    "##nip",
    "cat",
    "[SEP]",
]
LOOKS = np.array([8, 1, 2, 3, 4, 5, 6, 7, 0.25, 0.5, 0.125, 9], np.float32)


def test_pieces_are_summed_and_special_tokens_left_out() -> None:
    assert list(word_weights(TOKENS, LOOKS, SPECIAL)) == [
        *(("the", 1), ("cats", 5), ("running", 9), ("!", 6)),
        *(("catnip", 0.75), ("cat", 0.125)),
    ]
    assert list(word_weights([], LOOKS[:0], SPECIAL)) == []


def test_stems_have_their_largest_word_without_stop_words_and_signs() -> None:
    by_index = {1_751_422_759: 5, 243_905_464: 9, 20_642_417: 0.75}  # cat, run, catnip
    found = sparse_vector(TOKENS, LOOKS, SPECIAL)
    assert found.indices.tolist() == sorted(by_index)
    values = [math.sqrt(math.log(1 + by_index[index])) for index in sorted(by_index)]
    assert found.values.tolist() == pytest.approx(values)


@pytest.mark.parametrize(
    ("word", "index"),
    [
        ("adding", 1_271_291_307),
        ("university", 482_863_870),
        ("international", 2_139_336_747),
        ("pasting", 1_328_124_297),
    ],
)
def test_stems_are_those_of_indices_that_exist(word: str, index: int) -> None:
    """Snowball 3 stems these words differently than its version 2, which fastembed uses."""
    assert sparse_vector([word], np.ones(1, np.float32), SPECIAL).indices.tolist() == [index]


def test_a_text_of_stop_words_is_empty() -> None:
    found = sparse_vector(["[CLS]", "it", "is", ".", "[SEP]"], np.ones(5, np.float32), SPECIAL)
    assert len(found.indices) == len(found.values) == 0


def test_stop_words_are_nltks_without_apostrophes() -> None:
    assert len(STOP_WORDS) == 179 - 26
    assert not any("'" in word for word in STOP_WORDS)
    assert {"i", "not", "mightn", "yourselves"} <= STOP_WORDS
