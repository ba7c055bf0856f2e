"""SentencePiece's model files, against its own library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from model.errors import CheckpointError
from model.tokenization.piece_model import read_piece_model
from tests.model.piece_folders import piece_model


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
from model.tokenization.piece_model import read_piece_model
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
    with pytest.raises(CheckpointError, match=said) as caught:
        read_piece_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
