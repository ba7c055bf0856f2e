"""Upper bound on how a tokenizer's normalizer and decoder expand a text, from their rules alone."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model.errors import CheckpointError

MOST_FACTOR = 512
"""Maximum number of characters that one character may become. Marian's rules reach 288."""
MOST_ADDED = 2**14
"""Maximum number of characters that may be added to a text of any length."""
_BYTE_LEVEL = 4.0
"""Number of characters that ByteLevel makes of one."""
_NO_BOUND = 1e300
_AHEAD = re.compile(r"\(\?[=!][^()]*\)\Z")
"""Lookahead at the end of a regular expression, which consumes no character."""
_UNCLEAR = re.compile(r"\(\?(?!:)|\\[bBAzZGK]|(?<!\[)\^|\$")
"""Other parts of a regular expression that may consume no character."""


@dataclass(frozen=True)
class Growth:
    """Upper bound of a step: a text of n characters gets at most `factor` * n + `added`."""

    factor: float = 1.0
    added: float = 0.0

    def then(self, after: Growth) -> Growth:
        """Return the bound of this step and of one after it."""
        added = after.factor * self.added + after.added
        return Growth(min(self.factor * after.factor, _NO_BOUND), min(added, _NO_BOUND))


def check_growth(source: str, content: Mapping[str, object]) -> None:
    """Raise an error for a tokenizer that can expand texts too much."""
    for part in ("normalizer", "decoder"):
        bound = growth(content.get(part))
        if bound.factor > MOST_FACTOR or bound.added > MOST_ADDED:
            raise CheckpointError(
                f"{source}: the rules of the tokenizer's {part} can make "
                f"{bound.factor + bound.added:.3g} characters of one: at most {MOST_FACTOR}, and "
                f"{MOST_ADDED} more for a whole text, are read; remove its Replace or Prepend "
                "rules that grow a text"
            )


def growth(step: Any) -> Growth:
    """Return the bound of a normalizer or decoder in `tokenizer.json`.

    An unreadable step, which the library rejects, counts as no growth.
    """
    step = step if isinstance(step, dict) else {}
    bound = Growth()
    match step.get("type"):
        case "Sequence":
            inner = step.get("normalizers") or step.get("decoders")
            for inner_step in inner if isinstance(inner, list) else []:
                bound = bound.then(growth(inner_step))
        case "Replace":
            bound = _replaced(step.get("pattern"), len(str(step.get("content", ""))))
        case "Prepend":
            bound = Growth(added=len(str(step.get("prepend", ""))))
        case "Precompiled":
            bound = Growth(_longest(step.get("precompiled_charsmap")))
        case "ByteLevel":
            bound = Growth(_BYTE_LEVEL)
    return bound


def _replaced(pattern: Any, length: int) -> Growth:
    """Return the bound of a Replace by `length` characters."""
    pattern = pattern if isinstance(pattern, dict) else {}
    text, expression = pattern.get("String"), str(pattern.get("Regex", ""))
    if isinstance(text, str) and text:
        return Growth(max(1.0, length / len(text)))
    if expression.startswith(r"\A") and "|" not in _without_groups(expression):
        return Growth(added=length)
    if _takes_a_character(expression):
        return Growth(max(1.0, length))
    return Growth(1.0 + length, length)  # insertions next to each character, and at one end


def _without_groups(expression: str) -> str:
    """Return a regular expression without its groups, so that `|` is the expression's own."""
    inner = re.compile(r"\([^()]*\)")
    while (shorter := inner.sub("", expression)) != expression:
        expression = shorter
    return expression


def _takes_a_character(expression: str) -> bool:
    """Return whether each match of a regular expression has a character; False if unclear.

    Without lookarounds, an expression that does not match an empty text does not match an empty
    part of any text.
    """
    expression = _AHEAD.sub("", expression)
    if _UNCLEAR.search(expression):
        return False
    try:
        return re.fullmatch(expression, "") is None
    except (re.error, RecursionError, OverflowError):
        return False


def _longest(charsmap: Any) -> float:
    """Return the length of the longest replacement of SentencePiece's compiled rules.

    The rules are the trie's size in bytes, the trie, and replacements that end with NUL.
    """
    try:
        rules = base64.b64decode(str(charsmap or ""))
    except binascii.Error:
        return 1.0
    replacements = rules[4 + int.from_bytes(rules[:4], "little") :]
    lengths = (len(text.decode("utf-8", "replace")) for text in replacements.split(b"\0"))
    return float(max(1, *lengths))
