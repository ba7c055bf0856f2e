"""OpenAI's vocabulary cl100k_base, read by the optional package tiktoken."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import Unprocessable
from service.system.distribution import require

NAME = "cl100k_base"


class Cl100k:
    """Decoder of token ids of cl100k_base."""

    def __init__(self) -> None:
        """Load the vocabulary, which tiktoken downloads unless its cache has it.

        Raises:
            ValueError: tiktoken is not installed, or cannot load the vocabulary.

        """
        require("--token-ids cl100k", "tiktoken")
        import tiktoken  # noqa: PLC0415 - optional

        try:
            self._encoding = tiktoken.get_encoding(NAME)
        except Exception as error:
            raise ValueError(
                f"--token-ids cl100k needs the vocabulary {NAME}, which tiktoken could not load "
                f"({type(error).__name__}): start once with a network, or set TIKTOKEN_CACHE_DIR "
                "to a folder that has it"
            ) from error

    def decode(self, name: str, ids: Sequence[int]) -> str:
        """Return the text of token ids, whose name is for error messages."""
        try:
            return self._encoding.decode(list(ids), errors="strict")
        except UnicodeDecodeError:
            raise Unprocessable(
                f"{name}: the token ids begin or end within a character: send the text"
            ) from None
        except (KeyError, OverflowError):
            raise Unprocessable(f"{name}: a token id is not of {NAME}: send the text") from None
