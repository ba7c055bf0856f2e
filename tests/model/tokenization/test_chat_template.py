from __future__ import annotations

import pytest

from model.errors import ConfigError
from model.tokenization import chat_template
from model.tokenization.chat_template import answer, rendered

CHATS = [[{"role": "query", "content": "a"}], [{"role": "query", "content": "é\n"}]]


def test_special_tokens_and_messages_are_variables() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    expected = ["<s>query: a", "<s>query: é\n"]
    assert rendered(template, CHATS, {"bos_token": "<s>"}) == expected


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('no\nroles') }}", "no roles"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "'__class__' of 'list' object"),
    ],
)
def test_errors_are_one_line(template: str, error: str) -> None:
    asked = {"template": template, "chats": CHATS, "tokens": {}}
    assert error in answer(asked)["error"]


def test_a_template_of_a_large_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the chat template cannot be rendered: MemoryError"):
        rendered("{{ 'x' * 99999999999 }}", CHATS, {})


def test_a_template_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 1)
    loop = "{% for i in range(99999) %}"
    with pytest.raises(ConfigError, match="is not rendered within 1 s"):
        rendered(5 * loop + "x" + 5 * "{% endfor %}", CHATS, {})
