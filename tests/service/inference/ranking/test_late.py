"""MaxSim against sentence-transformers' MultiVectorEncoder, for each form of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder

from model.artifact.manifest import Artifact
from model.export.loading import load_modules
from model.families.registry import read_config
from model.numerics.late_interaction import NO_VECTORS, LateInteraction
from model.runtimes.pytorch import PyTorchRuntime
from model.sources.files import transformer_folder
from model.sources.sentence import read_sentence
from model.tokenization.tokenizer import load_tokenizer
from service.engines.contract import Output
from service.engines.runtime import RuntimeEngine
from service.inference.encoding import PreparedTexts
from service.inference.ranking.scorers import LateScorer, MatchedToken
from service.inference.timings import Timings
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from service.scheduler.call import ANYBODY
from service.scheduler.outputs import check_outputs
from tests.model.checkpoints import edit_json
from tests.model.late_checkpoints import (
    DOCUMENTS,
    EXPANSION,
    QUERY,
    WORDS,
    write_late,
    write_pylate,
    write_stanford,
)
from tests.service.harness import serving, tokenized
from tests.service.inference.ranking.oracle import ranked as reply_of

LONG = " ".join(["the cat a b c"] * 5)


def ranked(folder: Path, query: str, documents: list[str]) -> tuple[list[float], LateScorer]:
    """Return the scores of a checkpoint in PyTorch, without an artifact or a scheduler."""
    inside = transformer_folder(folder)
    config = read_config(inside)
    sentence = read_sentence(folder, config.max_position_embeddings, config.hidden_size)
    built = load_tokenizer(inside, config, lowercase=sentence.lowercase)
    encoder, head, _ = load_modules(folder, built)
    assert head is not None
    late = head.config.late
    assert late is not None
    path = folder.with_name(f"{folder.name}-tokenizer.json")
    built.save(str(path))
    tokenizer = TextTokenizer(path, sentence, Limits(sentence.max_length, 10_000))

    def prepared(texts: list[str], options: Options) -> PreparedTexts:
        found = tokenizer.tokenize(texts, options)
        tokens = sum(len(text.input_ids) for text in found)
        return PreparedTexts(found, ANYBODY, cast(Any, None), Timings(tokens, 1.0, 0.5))

    mean = sentence.similarity_fn_name == "meanmaxsim"
    of_query = Options(True, prompt_name="query", max_tokens=late.query_tokens)
    of_documents = Options(True, prompt_name="document", max_tokens=late.document_tokens)
    manifest = SimpleNamespace(task=head.config)
    scorer = LateScorer(
        prepared(documents, of_documents),
        cast(Any, SimpleNamespace(manifest=manifest, config=config)),
        *("meanmaxsim" if mean else "maxsim", "matches", False),
        prepared([query], of_query),
    )
    engine = RuntimeEngine("torch", PyTorchRuntime(encoder, head), concurrency=1)
    tasks = [*scorer.query_tasks(), *(scorer.task(number) for number in range(len(documents)))]
    of_query_text, *outputs = engine.run(tasks)
    check_outputs(tasks, [of_query_text, *outputs], engine.hidden_size)
    scorer.take_queries([of_query_text])
    return [scorer.score(*item) for item in enumerate(outputs)], scorer


CASES: dict[str, Callable[[Path], Path]] = {
    "Stanford": write_stanford,
    "Stanford's, attended, with punctuation": lambda path: write_stanford(
        path, attend_to_mask_tokens=True, mask_punctuation=False
    ),
    "Stanford's defaults": lambda path: write_stanford(
        path, query_maxlen=None, doc_maxlen=None, query_token_id=None, doc_token_id=None
    ),
    "PyLate": write_pylate,
    "PyLate before it named itself": lambda path: write_pylate(path, model_type=None),
    "PyLate's, attended, with prompts": lambda path: write_pylate(
        path, attend_to_expansion_tokens=True, prompts={"query": "[Q] b ", "document": "c "}
    ),
    "PyLate's, not filled up": lambda path: write_pylate(
        path, do_query_expansion=False, skiplist_words=None
    ),
    "sentence-transformers": write_late,
    "at least so many": lambda path: write_late(
        path, query_expansion={**EXPANSION, "strategy": "min", "token": "cat"}, query_length=16
    ),
    "not filled up": lambda path: write_late(path, query_expansion=None, document_length=9),
    **{
        family: lambda path, family=family: write_late(path, family)  # type: ignore[misc]
        for family in (
            *("Albert", "DistilBert", "Electra", "ModernBert", "MPNet", "NomicBert", "Qwen3"),
            "Roberta",
        )
    },
    "a PyLate of ModernBERT": lambda path: write_pylate(path, "ModernBert"),
}


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, case: str) -> None:
    folder = CASES[case](tmp_path / "model")
    reference = MultiVectorEncoder(str(folder), device="cpu")
    for query in (QUERY, LONG):
        documents = [*DOCUMENTS, LONG]
        found, _ = ranked(folder, query, documents)
        expected = reference.similarity(
            reference.encode_query([query]), reference.encode_document(documents)
        )
        np.testing.assert_allclose(found, expected[0], rtol=0, atol=2e-5)
        assert np.ptp(found) > 0.1


def test_the_mean_over_a_querys_vectors(tmp_path: Path) -> None:
    folder = write_late(tmp_path / "model")
    sums, _ = ranked(folder, QUERY, DOCUMENTS)
    edit_json(folder / "config_sentence_transformers.json", similarity_fn_name="meanmaxsim")
    reference = MultiVectorEncoder(str(folder), device="cpu")
    vectors = reference.encode_query([QUERY]), reference.encode_document(DOCUMENTS)
    found, _ = ranked(folder, QUERY, DOCUMENTS)
    np.testing.assert_allclose(found, reference.similarity(*vectors)[0], rtol=0, atol=2e-5)
    np.testing.assert_allclose(found, np.array(sums) / EXPANSION["length"], rtol=0, atol=2e-5)


def test_a_document_without_vectors_is_last(tmp_path: Path) -> None:
    """Every token of it is left out, as the first, the last and all between are punctuation."""
    folder = write_late(tmp_path / "model", skipped=["[CLS]", "[SEP]", "the", "!"])
    reference = MultiVectorEncoder(str(folder), device="cpu")
    vectors = reference.encode_query([QUERY]), reference.encode_document(["!", "cat"])
    found, _ = ranked(folder, QUERY, ["!", "cat"])
    assert found[0] == NO_VECTORS == float(reference.similarity(*vectors)[0, 0])
    assert found[1] > -math.inf


def test_what_is_counted(tmp_path: Path) -> None:
    _, scorer = ranked(write_stanford(tmp_path / "model"), "a", ["the cat", "b"])
    # [CLS] [unused0] a [SEP] and five expansion tokens; six features of four bytes
    (task,) = scorer.query_tasks()
    assert task.input_ids.tolist()[:2] == [2, WORDS.index("[unused0]")]
    assert len(task.input_ids) == 9
    assert scorer.query_bytes == 4 * 6 * 9
    tokens = 9 + len(["[CLS]", "[unused1]", "the", "cat", "[SEP]"]) + 4
    timings = scorer.timings
    assert (timings.tokens, timings.began, timings.tokenization_seconds) == (tokens, 1.0, 1.0)


def test_matches_by_hand() -> None:
    """The second token of each text has no vector."""
    late = LateInteraction(modules=(), skipped_ids=(9,), skipped_in=("query", "document"))
    head = SimpleNamespace(late=late, outputs=2, shape=lambda tokens: (tokens, 2))
    inference: Any = SimpleNamespace(manifest=SimpleNamespace(task=head))
    ids = np.array([1, 9, 2])
    texts = [replace(tokenized(3), input_ids=ids), replace(tokenized(1), input_ids=ids[1:2])]
    of_query, of_documents = (
        PreparedTexts(each, ANYBODY, cast(Any, None), Timings(3, 0.0, 0.0))
        for each in (cast(Any, texts[:1]), cast(Any, texts))
    )
    scorer = LateScorer(of_documents, inference, "maxsim", "matches", True, of_query)
    query = np.array([[1, 0], [9, 9], [0, 2]], np.float32)
    document = np.array([[0, 1], [5, 5], [3, 1]], np.float32)
    scorer.take_queries([Output(scores=query)])
    found = scorer.matches(0, Output(scores=document))
    assert found == [MatchedToken(0, 2, 3.0), MatchedToken(2, 0, 2.0)]
    assert scorer.shares(0, Output(scores=document)).tolist() == [2.0, 0.0, 3.0]
    assert scorer.matches(1, Output(scores=document[1:2])) == []


@pytest.mark.anyio
async def test_shares_are_the_sums_of_matches(
    late_artifact: Artifact, late_checkpoint: Path
) -> None:
    reference = MultiVectorEncoder(str(late_checkpoint), device="cpu")
    async with serving(late_artifact) as client:
        reply = await reply_of(client, QUERY, documents=DOCUMENTS, explain="tokens")
        contrast = await reply_of(client, QUERY, documents=DOCUMENTS, explain="contrast")
        body = {"query": QUERY, "documents": DOCUMENTS, "query_prompt_name": "query"}
        refused = await client.post("/rank", json=body)
    assert (refused.status_code, reply["method"], reply["scoring"]) == (422, "matches", "maxsim")
    (query,) = reference.encode_query([QUERY])
    for result in reply["results"]:
        (theirs,) = reference.encode_document([DOCUMENTS[result["index"]]])
        products = np.asarray(query) @ np.asarray(theirs).T
        assert result["score"] == pytest.approx(products.max(axis=1).sum(), abs=1e-4)
        expected = np.zeros(len(theirs))
        np.add.at(expected, products.argmax(axis=1), products.max(axis=1))
        found = [share for share in result["shares"] if share]
        np.testing.assert_allclose(found, expected[expected != 0], atol=1e-4)
        assert result["completeness_error"] < 1e-5
    assert reply["prompts"] == {"query": None, "document": None}
    assert contrast["contrast"]["completeness_error"] < 1e-5
    assert not contrast["contrast"]["partial"]
