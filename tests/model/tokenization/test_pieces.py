"""SentencePiece's model files, ids and segmentation, against its own library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken

from model.errors import CheckpointError
from model.tokenization.files import TokenizerFiles
from model.tokenization.piece_tokenizer import (
    DeclaredTokens,
    Vocabulary,
    piece_tokenizer,
    read_ids,
    read_piece_model,
)
from model.tokenization.vocabulary import model_ids, vocabulary_size
from tests.model.piece_folders import piece_model
from tests.model.refusals import refused
from tests.model.texts import MORE_TEXTS
from tests.model.tokenizer_folders import LINES


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_scores_and_normalisation(tmp_path: Path, kind: str) -> None:
    (path := tmp_path / "x.spm").write_bytes(content := piece_model(kind))
    found = read_piece_model(path)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    cut = [index for index in range(theirs.get_piece_size()) if not theirs.is_control(index)]
    cut = [index for index in cut if not theirs.is_unknown(index)]
    assert found.pieces == [(theirs.id_to_piece(i), theirs.get_score(i)) for i in cut]
    assert found.kind.lower() == kind
    proto = sentencepiece_model_pb2.ModelProto.FromString(content)
    assert found.charsmap == proto.normalizer_spec.precompiled_charsmap != b""
    assert found.add_dummy_prefix
    assert found.remove_extra_whitespaces
    options = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    path.write_bytes(piece_model(normalization_rule_name="identity", **options))
    found = read_piece_model(path)
    assert (found.charsmap, found.add_dummy_prefix, found.remove_extra_whitespaces) == (
        *(b"", False, False),
    )


WITHOUT_ITS_LIBRARY = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: name != "sentencepiece" and find(name, *rest) or None
from pathlib import Path
from model.tokenization.piece_tokenizer import read_piece_model
print(len(read_piece_model(Path(sys.argv[1])).pieces), "sentencepiece" in sys.modules)
"""


@pytest.mark.slow
def test_an_export_does_not_need_sentencepiece(tmp_path: Path) -> None:
    (path := tmp_path / "x.spm").write_bytes(piece_model())
    command = [sys.executable, "-c", WITHOUT_ITS_LIBRARY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == [str(len(read_piece_model(path).pieces)), "False"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"none", "is not a SentencePiece model"),
        (b"", "no pieces"),
        (piece_model("char"), "words or characters"),
        (piece_model(user_defined_symbols="<x>"), "user-defined pieces"),
        (piece_model(byte_fallback=True), "bytes as pieces"),
        (piece_model(treat_whitespace_as_suffix=True), "spaces at the ends of words"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (path := tmp_path / "x.spm").write_bytes(content)
    assert said in refused(CheckpointError, path, read_piece_model, path)


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": "0"}, "does not hold ids of tokens"),
        ({"a": -1}, "does not hold ids of tokens"),
        ({"a": 1, "b": 1}, "gives two tokens one id"),
        ({"a": 4_000_000_000}, "does not hold ids of tokens"),
        (["a"], "does not hold a JSON object"),
    ],
)
def test_refused_vocabularies(tmp_path: Path, content: Any, said: str) -> None:
    (path := tmp_path / "vocab.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said):
        read_ids(path)


def test_an_added_token_does_not_have_a_special_tokens_id(tmp_path: Path) -> None:
    """transformers would move the unknown token to another id."""
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a": 1}')
    settings = {"added_tokens_decoder": {"0": {"content": "<x>"}, "1": {"content": "b"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"<x> the id 0, which vocab\.json gives <unk>"):
        DeclaredTokens.read(TokenizerFiles.read(tmp_path), {"unk_token": "<unk>"})
