"""The oracle of a tokenizer: transformers' AutoTokenizer on the same folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.artifact.tokenizer import read_tokenizer
from model.families.registry import parse_config
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY
from tests.model.texts import MORE_TEXTS, PAIRS, TEXTS

SOME_TEXTS = [*MORE_TEXTS, *TEXTS[::6]]
"""Enough where it is a matter of which tokens there are."""


def assert_equals_transformers(
    folder: Path, vocab_size: int = TINY["vocab_size"], texts: Sequence[str] = (*TEXTS, *MORE_TEXTS)
) -> Tokenizer:
    """Ids, segments, offsets and tokens of texts and pairs, in ours and in transformers'.

    In ours as it is loaded, and as it is saved for the service.
    """
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": vocab_size})
    ours = load_tokenizer(folder, config, lowercase=False)
    theirs = AutoTokenizer.from_pretrained(folder)
    with TemporaryDirectory() as artifact:
        ours.save(str(Path(artifact) / "tokenizer.json"))
        saved = read_tokenizer(Path(artifact) / "tokenizer.json")
    for batch in (list(texts), PAIRS):
        expected = theirs(batch, return_offsets_mapping=True, return_token_type_ids=True)
        again = saved.encode_batch(batch)
        assert [encoding.ids for encoding in again] == expected["input_ids"]
        assert [encoding.offsets for encoding in again] == expected["offset_mapping"]
        for i, (text, found) in enumerate(zip(batch, ours.encode_batch(batch), strict=True)):
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
