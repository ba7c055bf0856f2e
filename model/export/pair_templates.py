"""Chat templates of rerankers, as the text around a query and a document.

transformers renders the template in its sandbox, at export. The service then only joins strings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.artifact.logit_score import LogitScore, MessageFormat
from model.errors import ConfigError
from model.numerics.pair_template import PairTemplate
from model.tokenization.chat_template import rendered
from model.tokenization.tokenizer import special_tokens

MOST_CHARACTERS = 2**16
"""Maximum number of characters of a chat template."""
MOST_RENDERED = 2**12
"""Maximum number of characters around a pair, since short pairs are tokenised on the event loop."""
_PROBES = (("⟦query⟧", "⟦document⟧"), (" ⟦q⟧\n&<'\\n ", "\t⟦d⟧ {{ d }}\n\n"))
"""Pairs that show where a template puts both texts, and whether it changes them."""


def pair_templates(
    folder: Path, score: LogitScore, prompts: Mapping[str, str]
) -> dict[str, PairTemplate]:
    """Return the text around a pair for each prompt by its name, and for no prompt by "".

    As in sentence-transformers, a prompt is the message of the system, and both texts are the
    messages of the roles `query` and `document`.

    Args:
        folder: folder of the tokenizer, whose special tokens a template may name.
        score: files of the reranker.
        prompts: prompts of the checkpoint by name.

    Raises:
        ConfigError: the template cannot be rendered, or changes, repeats or leaves out a text.

    """
    if score.chat_template is None:
        return {}
    named = {**prompts, "": ""}
    try:
        _check_source(score.chat_template)
        chats = [
            _chat(score.message_format, prompt, *pair)
            for prompt in named.values()
            for pair in _PROBES
        ]
        texts = iter(rendered(score.chat_template, chats, special_tokens(folder)))
        return {name: _template([next(texts) for _ in _PROBES]) for name in named}
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None


def _check_source(template: str) -> None:
    if "strftime_now" in template:
        raise ConfigError("a chat template with the current time is not supported")
    if len(template) > MOST_CHARACTERS:
        raise ConfigError(
            f"the chat template has {len(template)} characters; at most {MOST_CHARACTERS} are "
            "supported"
        )


def _chat(form: MessageFormat, prompt: str, query: str, document: str) -> list[dict[str, Any]]:
    """Return the messages of a pair after a prompt, which is empty for none."""
    roles = {"system": prompt, "query": query, "document": document}
    return [
        {"role": role, "content": text if form == "flat" else [{"type": "text", "text": text}]}
        for role, text in roles.items()
        if text
    ]


def _template(texts: Sequence[str]) -> PairTemplate:
    """Return the text around a pair, by the texts of both probes."""
    found = []
    for text, (query, document) in zip(texts, _PROBES, strict=True):
        parts = text.split(query)
        ends = parts[-1].split(document)
        if len(parts) != 2 or len(ends) != 2 or not ends[0] or document in parts[0]:
            raise ConfigError(
                "the chat template does not contain the query and then the document once and "
                "unchanged, as messages of the roles query and document"
            )
        found.append(PairTemplate(before=parts[0], between=ends[0], after=ends[1]))
    around = len(found[0].filled("", ""))
    if found[0] != found[1] or around > MOST_RENDERED:
        raise ConfigError(
            f"the chat template puts {around} characters around a pair, which depend on it or are "
            f"more than {MOST_RENDERED}"
        )
    return found[0]
