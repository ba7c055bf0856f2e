"""Files of rerankers by logits: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model.artifact.logit_score import LogitScore, read_logit_score
from model.artifact.task import task_kind
from model.errors import ConfigError

WORDS = {"true_token_id": 5, "false_token_id": 3}
MESSAGES = {"text": {}, "message": {"format": "structured"}}


def write(
    folder: Path, config: dict[str, Any], kinds: tuple[str, ...] = ("Transformer", "LogitScore")
) -> Path:
    """Write the descriptions of a reranker."""
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(config))
    paths = ["", "1_LogitScore", ""]
    modules = [
        {"path": path, "type": f"sentence_transformers.cross_encoder.modules.{kind}"}
        for path, kind in zip(paths, kinds, strict=False)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def test_its_words_and_its_template(tmp_path: Path) -> None:
    folder = write(tmp_path, WORDS | {"module_input_name": "causal_logits"})
    assert task_kind(folder) == "sequence_classification"
    assert read_logit_score(folder) == LogitScore(**WORDS)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({"chat_template": "of the settings"}))
    assert read_logit_score(folder) == LogitScore(**WORDS, chat_template="of the settings")
    (folder / "chat_template.jinja").write_text("of a file")
    assert read_logit_score(folder) == LogitScore(**WORDS, chat_template="of a file")
    settings = folder / "sentence_bert_config.json"
    settings.write_text(json.dumps({"modality_config": {"text": {}}}))
    assert read_logit_score(folder) == LogitScore(**WORDS)
    settings.write_text(json.dumps({"modality_config": MESSAGES}))
    found = read_logit_score(folder)
    assert found is not None
    assert (found.chat_template, found.message_format) == ("of a file", "structured")


def test_another_order_of_modules_is_none(tmp_path: Path) -> None:
    folder = write(tmp_path, WORDS, ("Transformer", "LogitScore", "Dense"))
    assert read_logit_score(folder) is None
    assert task_kind(folder) is None


@pytest.mark.parametrize(
    ("config", "files", "says"),
    [
        ({}, {}, "true_token_id: Input should be a valid integer"),
        (WORDS | {"true_token_id": -1}, {}, "true_token_id: Input should be greater than or equal"),
        (WORDS | {"scale": 2}, {}, "scale is not supported"),
        (WORDS | {"module_input_name": "logits"}, {}, "'logits' is not supported; 'causal_logits'"),
        (
            WORDS,
            {"sentence_bert_config": {"modality_config": MESSAGES}},
            r"names messages, and .* holds no chat_template\.jinja",
        ),
        (
            WORDS,
            {"tokenizer_config": {"chat_template": [{"name": "default", "template": "a"}]}},
            "several chat templates are not supported",
        ),
        (
            WORDS,
            {
                "sentence_bert_config": {"modality_config": {"message": {"format": "auto"}}},
                "tokenizer_config": {"chat_template": "a"},
            },
            "message_format: Input should be 'flat' or 'structured'",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], says: str
) -> None:
    folder = write(tmp_path, config)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says):
        read_logit_score(folder)
