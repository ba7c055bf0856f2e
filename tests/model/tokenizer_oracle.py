"""Comparison of tokenizers of either side with transformers' AutoTokenizer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from model.families.registry import parse_config
from model.tokenization.tokenizer import load_target_tokenizer, load_tokenizer
from model.tokenization.vocabulary import model_ids, read_tokenizer
from tests.model.checkpoints import TINY
from tests.model.texts import MORE_TEXTS, PAIRS, TEXTS

SOME_TEXTS = [*MORE_TEXTS, *TEXTS[::6]]
"""Texts that suffice for tests of the set of tokens."""

_RUN = re.compile(r"(.{1,2})\1{7,}")


def assert_equals_transformers(
    folder: Path, vocab_size: int = TINY["vocab_size"], texts: Sequence[str] = (*TEXTS, *MORE_TEXTS)
) -> Tokenizer:
    """Compare ids, segments, offsets and tokens of texts and pairs with transformers'.

    Our tokenizer is compared as loaded, and as saved for the service.
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


def assert_targets_equal_transformers(folder: Path, texts: Sequence[str] = TEXTS) -> None:
    """Compare ids, offsets and tokens of targets."""
    ours = _loaded(folder, target=True)
    expected = AutoTokenizer.from_pretrained(folder)(
        text_target=list(texts), return_offsets_mapping=True
    )
    for i, (text, found) in enumerate(zip(texts, ours.encode_batch(list(texts)), strict=True)):
        assert found.ids == expected["input_ids"][i], text
        assert found.offsets == expected["offset_mapping"][i], text
        assert found.tokens == expected.tokens(i), text


def assert_pieces_equal_transformers(
    folder: Path, texts: Sequence[str] = (*TEXTS, *MORE_TEXTS), *, target: bool = False
) -> Tokenizer:
    """Compare ids and tokens of one side, for a class without a tokenizer.json or offsets.

    Long runs are left out: their segmentations are equally likely, and the rounding of
    SentencePiece's four-byte sums decides between them.
    """
    ours = _loaded(folder, target=target)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # not used here
        theirs = AutoTokenizer.from_pretrained(folder)
    for text in (text for text in texts if not _RUN.search(text)):
        expected = theirs(text_target=text) if target else theirs(text)
        found = ours.encode(text)
        assert model_ids(ours, found) == expected["input_ids"], text
        if target:
            theirs._switch_to_target_mode()
        pieces = iter(theirs.tokenize(text))
        if target:
            theirs._switch_to_input_mode()
        for token, special in zip(found.tokens, found.special_tokens_mask, strict=True):
            assert special or token in (next(pieces), "<unk>"), text
    if not target:
        for pair in PAIRS:
            assert model_ids(ours, ours.encode(*pair)) == theirs(*pair)["input_ids"], pair
    return ours


def _loaded(folder: Path, *, target: bool) -> Tokenizer:
    """Return a side's tokenizer as saved for the service."""
    config = parse_config(TINY | {"model_type": "bert", "vocab_size": 10_000})
    found = load_target_tokenizer(folder, 10_000, lowercase=False) if target else None
    ours = found or load_tokenizer(folder, config, lowercase=False)
    with TemporaryDirectory() as artifact:
        ours.save(str(Path(artifact) / "tokenizer.json"))
        return read_tokenizer(Path(artifact) / "tokenizer.json")
