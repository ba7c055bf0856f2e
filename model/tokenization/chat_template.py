"""Chat templates, rendered by transformers in its sandbox and in a process of limited resources.

The sandbox keeps a template from files and code, but not from endless loops and large texts.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from model.errors import ConfigError

Chat = Sequence[Mapping[str, Any]]
"""Messages, each with a role and a content."""
SECONDS = 60
"""Maximum number of seconds for all texts of a template, the imports of transformers included."""
MOST_BYTES = 2**31
"""Maximum bytes of data of the process that renders."""


def rendered(template: str, chats: Sequence[Chat], tokens: Mapping[str, str]) -> list[str]:
    """Return the text of each conversation.

    The template (jinja) may use the special tokens by name.
    """
    asked = json.dumps({"template": template, "chats": [*map(list, chats)], "tokens": {**tokens}})
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, input=asked, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the chat template is not rendered within {SECONDS} s") from None
    if done.returncode:
        raise ConfigError(
            "the chat template cannot be rendered: the process for it ended with the status "
            f"{done.returncode}"
        )
    result = json.loads(done.stdout)
    if "error" in result:
        raise ConfigError(f"the chat template cannot be rendered: {result['error']}")
    texts: list[str] = result["texts"]
    return texts


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of conversations, or the error of their template, in this process."""
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

    try:
        texts, _ = render_jinja_template(
            asked["chats"], chat_template=asked["template"], **asked["tokens"]
        )
    except Exception as error:  # templates raise errors of any type
        return {"error": " ".join(str(error).split()) or type(error).__name__}
    return {"texts": texts}


def main() -> None:
    """Render the conversations of standard input, as JSON, to standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
