"""M2M-100's tokenizer and its languages, against transformers' own over SentencePiece."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.errors import CheckpointError
from model.tokenization.tokenizer import load_target_tokenizer
from tests.model.piece_folders import write_m2m_100
from tests.model.tokenizer_oracle import SOME_TEXTS, assert_pieces_equal_transformers


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_m2m_100(tmp_path: Path, kind: str) -> None:
    write_m2m_100(tmp_path, kind)
    assert_pieces_equal_transformers(tmp_path)
    assert_pieces_equal_transformers(tmp_path, target=True)


def test_languages_that_are_special_tokens_in_texts(tmp_path: Path) -> None:
    write_m2m_100(tmp_path, extra_special_tokens=["__af__", "__am__"], src_lang=None)
    tokenizer = assert_pieces_equal_transformers(tmp_path, [*SOME_TEXTS, "a __am__ b __en__"])
    assert tokenizer.encode("").tokens == ["__en__", "</s>"]


def test_a_language_is_one_of_the_models(tmp_path: Path) -> None:
    def refusal(**settings: str | None) -> str:
        write_m2m_100(tmp_path, **settings)
        with pytest.raises(CheckpointError) as caught:
            load_target_tokenizer(tmp_path, 10_000, lowercase=False)
        return str(caught.value)

    assert "tgt_lang of tokenizer_config.json is None; set it to" in refusal(tgt_lang=None)
    assert "tgt_lang of tokenizer_config.json is 'xx'" in refusal(tgt_lang="xx")
    assert "language_codes of tokenizer_config.json is 'x'" in refusal(language_codes="x")
