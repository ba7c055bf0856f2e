"""Cross-encoders' rankings and occlusion, against transformers' `attention_mask` 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from model.artifact.manifest import Artifact
from model.artifact.sentence import SentenceConfig
from service.inference.ranking.cross import first_of_pair, second_of_pair
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.model.logit_checkpoints import published, write_cross_encoder
from tests.model.task_checkpoints import write_task_checkpoint
from tests.service.harness import serving
from tests.service.inference.ranking.oracle import DOCUMENTS, CrossEncoder, ranked

pytestmark = pytest.mark.anyio
QUERY = "a cat b"


@pytest.mark.parametrize("family", ["Bert", "ModernBert"])
async def test_the_loss_without_each_token(
    exported: Callable[..., Artifact], cross_checkpoint: Path, tmp_path: Path, family: str
) -> None:
    """A head over the first token, and one over the mean, which leaves the token out as well."""
    folder, name = cross_checkpoint, "cross"
    if family != "Bert":
        folder, name = tmp_path / "model", f"rank-{family}"
        write_task_checkpoint(folder, family=family, num_labels=1)
    oracle = CrossEncoder(folder)
    async with serving(exported(folder, name)) as client:
        reply = await ranked(client, QUERY, explain="tokens", top_n=3)
    assert (reply["scoring"], reply["method"]) == ("logit", "occlusion")
    scores = [oracle.score(QUERY, document) for document in DOCUMENTS]
    expected = np.argsort([-score for score in scores], kind="stable")[:3]
    assert [result["index"] for result in reply["results"]] == expected.tolist()
    for result in reply["results"]:
        document, score = DOCUMENTS[result["index"]], scores[result["index"]]
        own = oracle.own(QUERY, document)
        assert result["score"] == pytest.approx(score, abs=1e-5)
        losses = [score - oracle.score(QUERY, document, token) for token in own]
        np.testing.assert_allclose(result["shares"], losses, atol=2e-5)
        assert result["completeness_error"] == pytest.approx(abs(sum(losses) - score), abs=1e-4)
        assert [document[start:end].lower() for start, end in result["offsets"]] == result["tokens"]
        assert (result["partial"], result["computed"]) == (False, len(own))


async def test_a_contrast_removes_words_as_transformers_masks_them(
    cross_checkpoint: Path, exported: Callable[..., Artifact]
) -> None:
    oracle = CrossEncoder(cross_checkpoint)
    async with serving(exported(cross_checkpoint, "cross")) as client:
        reply = await ranked(client, QUERY, explain="contrast", compare=[1, 3], top_words=2)
    scores = [oracle.score(QUERY, document) for document in DOCUMENTS]
    contrast = reply["contrast"]
    assert contrast["documents"] == [1, 3]
    assert contrast["difference"] == pytest.approx(scores[1] - scores[3], abs=1e-5)
    for side, number in enumerate((1, 3)):
        document = DOCUMENTS[number]
        words = document.lower().split()
        own = oracle.own(QUERY, document)
        without = {
            word: oracle.score(
                *(QUERY, document),
                *(token for token, name in zip(own, words, strict=True) if name == word),
            )
            for word in words
        }
        shares = {
            row["word"]: row["shares"][side] for row in contrast["words"] if row["spans"][side]
        }
        assert shares == {
            word: pytest.approx(scores[number] - left, abs=2e-5) for word, left in without.items()
        }
        strongest = sorted(without, key=lambda word: without[word])[:2]
        assert [row["word"] for row in contrast["without"][side]] == strongest
        for row in contrast["without"][side]:
            score = without[row["word"]]
            others = [other for place, other in enumerate(scores) if place != number]
            assert row["score"] == pytest.approx(score, abs=2e-5)
            assert row["rank"] == 1 + sum(other > score for other in others)


async def test_words_of_the_query_are_left_out_of_each_pair(
    cross_checkpoint: Path, exported: Callable[..., Artifact]
) -> None:
    oracle = CrossEncoder(cross_checkpoint)
    fields = {"query_without": [[2, 5]], "documents_without": [[[4, 7]], *[[]] * 4]}
    async with serving(exported(cross_checkpoint, "cross")) as client:
        reply = await ranked(client, QUERY, **fields)
        whole = await ranked(client, QUERY, explain="tokens")
    scores = {result["index"]: result["score"] for result in reply["results"]}
    for number, document in enumerate(DOCUMENTS):
        word = [oracle.own(QUERY, document)[1]] if number == 0 else []
        expected = oracle.score(QUERY, document, 2, *word)  # [CLS] a cat b
        assert scores[number] == pytest.approx(expected, abs=2e-5)
    assert whole["query"]["tokens"] == ["a", "cat", "b"]


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta"])
def test_the_second_text_of_a_pair(tmp_path: Path, family: str) -> None:
    """By the positions that transformers' tokenizer gives, also where a text has no token."""
    folder = write_task_checkpoint(tmp_path / "model", family=family, num_labels=1)
    oracle = CrossEncoder(folder)
    sentence = SentenceConfig(pooling="mean", max_length=36)
    tokenizer = TextTokenizer(folder / "tokenizer.json", sentence, Limits(36, 999))
    for pair in [("a b", "the cat"), ("", "x y"), ("x y", ""), ("", "")]:
        (text,) = tokenizer.tokenize([pair], Options())
        second = second_of_pair(text)
        assert list(second) == oracle.own(*pair), pair
        assert list(first_of_pair(text, second)) == oracle.own(*pair, side=0), pair


@pytest.mark.slow
async def test_a_reranker_by_logits(exported: Callable[..., Artifact], tmp_path: Path) -> None:
    """Tokens of its chat template stay."""
    folder = write_cross_encoder(tmp_path / "saved", num_hidden_layers=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder).eval()
    words = tokenizer.convert_tokens_to_ids(["yes", "no"])
    document = "The cat sat on the mat."
    text = published(QUERY, document)
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    begin = text.rindex(document)
    spans = encoded.pop("offset_mapping")[0].tolist()
    own = [n for n, (a, b) in enumerate(spans) if b > begin and a < begin + len(document)]

    def score(*masked: int) -> float:
        mask = torch.ones_like(encoded["attention_mask"])
        mask[0, list(masked)] = 0
        with torch.inference_mode():
            yes, no = model(encoded["input_ids"], attention_mask=mask).logits[0, -1, words]
        return float(yes - no)

    async with serving(exported(folder, "logit-st")) as client:
        reply = await ranked(client, QUERY, documents=[document], explain="tokens")
        named = {"query": QUERY, "documents": [document], "document_prompt_name": "news"}
        refused = await client.post("/rank", json=named)
    assert refused.status_code == 422
    assert "document_prompt_name is not for this model" in refused.json()["detail"]
    (result,) = reply["results"]
    assert result["score"] == pytest.approx(score(), abs=1e-4)
    losses = [score() - score(token) for token in own]
    np.testing.assert_allclose(result["shares"], losses, atol=1e-4)
