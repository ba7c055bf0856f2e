"""Special tokens that a model can take around a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from model.errors import CheckpointError
from model.families.registry import parse_config
from model.tokenization.templates import check_template
from model.tokenization.tokenizer import load_tokenizer
from tests.model.checkpoints import TINY, write_tokenizer


@pytest.mark.parametrize(
    ("token", "count", "segment", "said"),
    [
        ("[CLS]", 200, 0, "puts 200 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 40, 0, "puts 40 special tokens around a text, of which the model takes 40 tok"),
        ("[CLS]", 1, 7, r"gives a text the segment 7, where the encoder has 2 \(type_vocab_size\)"),
        ("[X]", 1, 0, "puts the token 999999 around a text, where the encoder has 60"),
    ],
)
def test_templates_that_the_model_cannot_take(
    tmp_path: Path, token: str, count: int, segment: int, said: str
) -> None:
    config = parse_config({**TINY, "model_type": "bert"})
    write_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path, config, lowercase=False)
    check_template(tmp_path, tokenizer, config, 40)
    tokenizer.add_special_tokens(["[X]"])
    tokenizer.post_processor = TemplateProcessing(
        single=" ".join([f"{token}:{segment}"] * count + [f"$A:{segment}"]),
        pair="$A $B",
        special_tokens=[("[CLS]", 2), ("[X]", 999_999)],
    )
    with pytest.raises(CheckpointError, match=said) as failed:
        check_template(tmp_path, tokenizer, config, 40)
    assert "\n" not in str(failed.value)
