"""Spans of labels against transformers' own TokenClassificationPipeline, over made-up logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    TokenClassificationPipeline,
)
from transformers.pipelines.token_classification import AggregationStrategy

from model.artifact.sentence import SentenceConfig
from model.families.registry import parse_config
from model.tokenization.tokenizer import load_tokenizer
from service.inference.tasks.task_heads import Aggregation, Grouping, TokenLabels, spans
from service.inference.tokenization.tokenizer import Limits, Options, TextTokenizer
from tests.model.checkpoints import TINY
from tests.model.texts import TEXTS
from tests.model.tokenizer_folders import VOCAB_SIZE, write_tokenizer_folder

LABELS = {
    "B and I": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "names alone": ["PER", "LOC", "O"],
    "both, and hyphens": ["O", "PER", "B-PER", "I-PER", "B-O", "NON-X", "I-NON-X"],
}
CLASSES = ["BertTokenizer", "XLMRobertaTokenizer", "RobertaTokenizer", "TokenizersBackend"]
UNKNOWN = ["the\ue000 cat \ue000\ue000 runs", "ship<unk>ship [UNK] ship[UNK]s <unk>"]


class Tokenizers:
    """Same tokenizer in the service and in transformers' pipeline."""

    def __init__(self, folder: Path, name: str) -> None:
        unknown = {"unk_token": "[UNK]"} if name == "TokenizersBackend" else {}
        write_tokenizer_folder(folder, name, model_max_length=512, **unknown)
        config = parse_config(TINY | {"model_type": "bert", "vocab_size": VOCAB_SIZE})
        load_tokenizer(folder, config, lowercase=False).save(str(folder / "ours.json"))
        sentence = SentenceConfig(max_length=512)
        self.ours = TextTokenizer(folder / "ours.json", sentence, Limits(512, 10**5))
        model = BertForTokenClassification(BertConfig(**TINY))
        theirs = AutoTokenizer.from_pretrained(folder)
        self.pipeline = TokenClassificationPipeline(model=model, tokenizer=theirs)


@pytest.fixture(scope="module", params=CLASSES)
def tokenizers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Tokenizers(tmp_path_factory.mktemp("tokenizer"), request.param)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("names", LABELS.values(), ids=LABELS.keys())
def test_spans_are_transformers(tokenizers: Tokenizers, names: list[str]) -> None:
    pipeline, rng = tokenizers.pipeline, np.random.default_rng(0)
    pipeline.model.config.id2label = dict(enumerate(names))
    several = 0
    for text in [*TEXTS[::3], *UNKNOWN]:
        (tokens,) = tokenizers.ours.tokenize([text], Options(truncate=True))
        logits = 4 * rng.standard_normal((len(tokens.input_ids), len(names)), np.float32)
        (given,) = pipeline.preprocess(text, is_split_into_words=False)
        assert given["input_ids"][0].tolist() == tokens.input_ids.tolist()
        output = {"word_ids": None} | given | {"logits": torch.from_numpy(logits)[None]}
        for aggregation in get_args(Aggregation):
            strategy = AggregationStrategy(aggregation)
            expected = pipeline.postprocess([output], strategy)
            found = spans(
                TokenLabels(text, tokens, logits),
                Grouping(aggregation, names),
                tokenizers.ours,
            )
            label = "entity" if aggregation == "none" else "entity_group"
            assert [(s.label, s.start, s.end) for s in found] == [
                (one[label], one["start"], one["end"]) for one in expected
            ], (text, aggregation)
            np.testing.assert_allclose(
                [s.score for s in found], [one["score"] for one in expected], rtol=1e-6
            )
            assert all(s.score.dtype == np.float32 for s in found)
            several += len(found) > 1
    assert several > 60


def test_raw_scores_are_logits(tokenizers: Tokenizers) -> None:
    (tokens,) = tokenizers.ours.tokenize(["a river"], Options())
    logits = np.random.default_rng(1).standard_normal((len(tokens.input_ids), 3), np.float32)
    found = spans(
        TokenLabels("a river", tokens, logits),
        Grouping("none", ["X", "Y", "Z"], raw=True),
        tokenizers.ours,
    )
    kept = np.array([*tokens.special_tokens_mask]) == 0
    np.testing.assert_array_equal([s.score for s in found], logits[kept].max(axis=-1))
    assert [s.label for s in found] == ["XYZ"[i] for i in logits[kept].argmax(axis=-1)]
