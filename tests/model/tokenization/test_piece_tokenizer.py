"""A SentencePiece model with other ids, against SentencePiece's own segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken

from model.tokenization.piece_model import read_piece_model
from model.tokenization.piece_tokenizer import piece_tokenizer
from model.tokenization.piece_vocabulary import Vocabulary
from model.tokenization.vocabulary import model_ids, vocabulary_size
from tests.model.piece_folders import piece_model
from tests.model.texts import MORE_TEXTS
from tests.model.tokenizer_folders import LINES

SCRIPTS = [
    "مُحَمَّد رَسُولُ اللَّهِ",
    "שָׁלוֹם בְּרֵאשִׁית",
    "tie\u0302\u0301ng Vie\u0323\u0302t",
    "か\u3099 \u1112\u1161\u11ab が 한",
    "กำลังน้ำ हिन्दी में क्या 👨‍👩‍👧 ❤️ 👍🏽",
    "\x01a\x02 \u00a0b\r\nc\t ½ ﬁn Ａ",
]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nmt_nfkc_cf"},
]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_ids_are_those_of_sentencepieces_cuts(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    (path := tmp_path / "x.spm").write_bytes(content := piece_model(kind, **options))
    model = read_piece_model(path)
    kept = [piece for piece, _ in reversed(model.pieces)][20:]
    tokens = ["<unk>", *kept, "foreign", "▁ri", "the", "▁"]
    vocabulary = Vocabulary(
        {token: 2 * index for index, token in enumerate(dict.fromkeys(tokens))},
        "<unk>",
        [AddedToken("<unk>", special=True, normalized=False)],
    )
    tokenizer = piece_tokenizer(model, vocabulary)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    for text in [
        *SCRIPTS,
        *(line for line in LINES[-40:] if "1999" not in line),
        "foreign  rivers ",
        " ",
        *MORE_TEXTS[:5],
    ]:
        pieces = theirs.encode(text, out_type=str)
        expected = [vocabulary.ids.get(piece, 0) for piece in pieces]
        assert model_ids(tokenizer, tokenizer.encode(text)) == expected, text
    assert vocabulary_size(tokenizer) == max(vocabulary.ids.values()) + 1


def test_words_are_decoded(tmp_path: Path) -> None:
    (path := tmp_path / "x.spm").write_bytes(piece_model())
    model = read_piece_model(path)
    tokens = ["<unk>", *(piece for piece, _ in model.pieces), "▁foreign"]
    ids = {token: index for index, token in enumerate(tokens)}
    tokenizer = piece_tokenizer(model, Vocabulary(ids, "<unk>", []))
    found = tokenizer.encode("the river")
    assert tokenizer.decode([*found.ids, ids["▁foreign"]]) == "the river foreign"
