from __future__ import annotations

import pytest

from model.errors import ConfigError
from model.tokenization.chat_template import rendered

CHAT = [{"role": "query", "content": "a"}]


def test_special_tokens_and_messages_are_variables() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    assert rendered(template, CHAT, {"bos_token": "<s>"}) == "<s>query: a"


@pytest.mark.parametrize("template", ["{% for %}", "{{ raise_exception('no roles') }}"])
def test_a_template_that_fails_is_named(template: str) -> None:
    with pytest.raises(ConfigError, match=r"^the chat template cannot be rendered: ."):
        rendered(template, CHAT, {})


def test_a_template_reaches_nothing_outside_of_its_sandbox() -> None:
    with pytest.raises(ConfigError, match="cannot be rendered"):
        rendered("{{ messages.__class__.__mro__[1].__subclasses__() }}", CHAT, {})
