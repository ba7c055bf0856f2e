"""The oracle of a tokenizer: transformers' AutoTokenizer on the same folder."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.families.registry import parse_config
from model.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY
from tests.model.texts import MORE_TEXTS, PAIRS, TEXTS


def assert_equals_transformers(folder: Path, vocab_size: int = TINY["vocab_size"]) -> Tokenizer:
    """Ids, segments, offsets and tokens of every text and pair, in ours and in transformers'."""
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": vocab_size})
    ours = load_tokenizer(folder, config, lowercase=False)
    theirs = AutoTokenizer.from_pretrained(folder)
    for texts in ([*TEXTS, *MORE_TEXTS], PAIRS):
        expected = theirs(texts, return_offsets_mapping=True, return_token_type_ids=True)
        for i, (text, found) in enumerate(zip(texts, ours.encode_batch(texts), strict=True)):
            assert found.ids == expected["input_ids"][i], text
            assert found.type_ids == expected["token_type_ids"][i], text
            assert found.offsets == expected["offset_mapping"][i], text
            assert found.tokens == expected.tokens(i), text
            for skip in (True, False):
                decoded = theirs.backend_tokenizer.decode(found.ids, skip_special_tokens=skip)
                assert ours.decode(found.ids, skip_special_tokens=skip) == decoded, text
            assert set(found.attention_mask) <= {1}, text
    assert ours.get_vocab(with_added_tokens=True) == theirs.get_vocab()
    return ours
