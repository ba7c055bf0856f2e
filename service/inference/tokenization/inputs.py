"""Inputs of a request: texts, pairs of texts, token ids, and pictures; and OpenAI's token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import Unprocessable
from service.system.distribution import require

CL100K = "cl100k_base"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of a text, special tokens included."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Picture as an encoded file, such as PNG or JPEG."""

    data: bytes
    first_frame: bool = False
    """Whether an animated file stands for its first frame, and is not refused."""


TextOrPair = str | tuple[str, str]
TextInput = TextOrPair | TokenIds
Input = TextInput | Picture


def size_of(given: Input) -> int:
    """Return the number of characters of a text, of token ids, or of bytes of a picture's file."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, TokenIds):
        return len(given.ids)
    return len(given.data) if isinstance(given, Picture) else sum(map(len, given))


def sizes_of(inputs: Sequence[Input]) -> list[int]:
    """Return the size of each input; see `size_of`."""
    return [*map(len if {*map(type, inputs)} == {str} else size_of, inputs)]  # type: ignore[arg-type]


def characters(inputs: Sequence[Input]) -> int:
    """Return the size of all inputs; see `size_of`."""
    return sum(sizes_of(inputs))


class Cl100k:
    """Decoder of token ids of OpenAI's vocabulary cl100k_base, by the optional package tiktoken."""

    def __init__(self) -> None:
        """Load the vocabulary, which tiktoken downloads unless its cache has it.

        Raises:
            ValueError: tiktoken is not installed, or cannot load the vocabulary.

        """
        require("--token-ids cl100k", "tiktoken")
        import tiktoken  # noqa: PLC0415 - optional

        try:
            self._encoding = tiktoken.get_encoding(CL100K)
        except Exception as error:
            raise ValueError(
                f"--token-ids cl100k needs the vocabulary {CL100K}, which tiktoken could not load "
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
            raise Unprocessable(f"{name}: a token id is not of {CL100K}: send the text") from None
