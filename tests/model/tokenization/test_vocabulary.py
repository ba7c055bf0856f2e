"""Ids that are given to the model."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from model.tokenization.vocabulary import BEYOND, model_ids, vocabulary_size

WORDS = ["a", "<unk>", "b", BEYOND, "ab", "c"]
UNIGRAM = models.Unigram([(word, -float(word != "<unk>")) for word in WORDS], 1)
PAIRS = models.BPE({word: i for i, word in enumerate(WORDS)}, [("a", "b")], unk_token="<unk>")


@pytest.mark.parametrize("model", [UNIGRAM, PAIRS])
def test_pieces_beyond_the_vocabulary_are_the_unknown_token(model: models.Model) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    encoding = tokenizer.encode("a ab b x ab c")
    assert encoding.ids == [0, 4, 2, 1, 4, 5]
    assert model_ids(tokenizer, encoding) == [0, 1, 2, 1, 1, 1]
    assert vocabulary_size(tokenizer) == 3


def test_another_tokenizers_ids_are_its_own() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 7}, "a"))
    assert model_ids(tokenizer, tokenizer.encode("b")) == [7]
    assert vocabulary_size(tokenizer) == 8
    tokenizer.add_tokens(["c"])
    assert vocabulary_size(tokenizer) == max(tokenizer.get_vocab().values()) + 1
    assert vocabulary_size(Tokenizer(models.WordLevel({}, "a"))) == 0
