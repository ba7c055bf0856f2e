"""Chat templates, rendered by transformers in its sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from model.errors import ConfigError


def rendered(template: str, chat: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> str:
    """Return the text of a conversation.

    Args:
        template: source of the chat template (jinja).
        chat: messages, each with a role and a content.
        tokens: special tokens by name, which the template may use.

    Raises:
        ConfigError: the template cannot be rendered.

    """
    try:
        texts, _ = render_jinja_template([[*chat]], chat_template=template, **tokens)
    except Exception as error:  # templates raise errors of any type
        reason = " ".join(str(error).split())
        raise ConfigError(f"the chat template cannot be rendered: {reason}") from None
    return str(texts[0])
