"""Text around pairs, against transformers' chat templates and Qwen3-Reranker's published format."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from transformers import AutoTokenizer

from model.errors import ConfigError
from model.export.loading import pair_templates
from model.sources.overlay import YES_NO
from model.sources.task_files import LogitScore
from model.tokenization.chat_template import answer
from tests.model.logit_checkpoints import PAIRS, published
from tests.model.tokenizer_folders import write_tokenizer_folder

ROLES = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ eos_token }}"
)
TYPED = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}{% endfor %}"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render templates in this process, which spares the start of another."""

    def run(command: list[str], *, input: str, **_: Any) -> CompletedProcess[str]:  # noqa: A002
        return CompletedProcess(command, 0, json.dumps(answer(json.loads(input))))

    monkeypatch.setattr("model.tokenization.chat_template.subprocess.run", run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    return write_tokenizer_folder(folder, "Qwen2Tokenizer", bos_token="<|endoftext|>")


def templates(folder: Path, template: str, **fields: Any) -> Any:
    score = LogitScore(true_token_id=0, chat_template=template, **fields)
    return pair_templates(folder, score, {"news": "Find news", "empty": ""})


def test_the_built_in_template_is_the_published_format(folder: Path) -> None:
    found = templates(folder, YES_NO)
    for pair in PAIRS:
        assert found[""].filled(*pair) == found["empty"].filled(*pair) == published(*pair)
        assert found["news"].filled(*pair) == published(*pair, "Find news")


@pytest.mark.parametrize("template", [ROLES, TYPED])
def test_templates_equal_transformers(folder: Path, template: str) -> None:
    structured = template == TYPED
    found = templates(folder, template, message_format="structured" if structured else "flat")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, prompt in {"news": "Find news", "": ""}.items():
        for pair in PAIRS:
            roles = zip(("system", "query", "document"), (prompt, *pair), strict=True)
            chat = [
                {"role": role, "content": [{"type": "text", "text": text}] if structured else text}
                for role, text in roles
                if role != "system" or text
            ]
            expected = tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False)
            assert found[name].filled(*pair) == expected


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0].content }}", "does not contain the query and then the document"),
        (ROLES.replace("m.content", "m.content | trim"), "once and unchanged"),
        (ROLES + ROLES, "once and unchanged"),
        (ROLES.replace("messages", "messages | reverse"), "does not contain the query and then"),
        (ROLES + "{{ messages[-1].content | length }}", "depend on it"),
        (ROLES + "x" * 4096, "more than 4096"),
        (ROLES + "x" * 2**16, "the chat template has 65"),
        (ROLES + "{{ strftime_now('%d') }}", "current time is not supported"),
        ("{{ raise_exception('no\nroles') }}", "cannot be rendered: no roles"),
        ("{% for %}", "cannot be rendered"),
    ],
)
def test_other_templates_are_refused(folder: Path, template: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        templates(folder, template)


def test_without_a_template_there_is_no_text_around_pairs(folder: Path) -> None:
    assert pair_templates(folder, LogitScore(true_token_id=0), {"news": "Find news"}) == {}
