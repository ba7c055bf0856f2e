"""OpenAI's token ids as texts, and the error if its vocabulary cannot be downloaded."""

from __future__ import annotations

import pytest
import tiktoken

from service.errors import Unprocessable
from service.inference.tokenization import cl100k
from service.inference.tokenization.cl100k import Cl100k
from service.system.distribution import install_command

BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"\S+|\s+",
    mergeable_ranks={bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257},
    special_tokens={"<|endoftext|>": 258},
)
"""A vocabulary of tiktoken's own making, as the real one is a download."""


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Cl100k:
    asked: list[str] = []
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: asked.append(name) or BYTES)
    found = Cl100k()
    assert asked == ["cl100k_base"]
    return found


@pytest.mark.parametrize("text", ["the water", "naïve café 😀", " a\n\tb ", "東京"])
def test_ids_are_decoded_as_tiktoken_encoded_them(decoder: Cl100k, text: str) -> None:
    assert decoder.decode("input[0]", BYTES.encode(text)) == text


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (BYTES.encode("😀")[:2], "begin or end within a character"),
        (BYTES.encode("😀")[2:], "begin or end within a character"),
        ([1000], "not of cl100k_base"),
        ([-1], "not of cl100k_base"),
        ([2**40], "not of cl100k_base"),
    ],
)
def test_ids_without_a_text_are_refused(decoder: Cl100k, ids: list[int], says: str) -> None:
    with pytest.raises(Unprocessable, match=rf"^input\[2\]: .*{says}"):
        decoder.decode("input[2]", ids)


def test_a_vocabulary_that_cannot_be_had_names_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> tiktoken.Encoding:
        raise ConnectionError(name)

    monkeypatch.setattr(tiktoken, "get_encoding", fail)
    with pytest.raises(ValueError, match=r"ConnectionError.*set TIKTOKEN_CACHE_DIR"):
        Cl100k()


def test_without_tiktoken_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.system.distribution.is_installed", lambda _: False)
    with pytest.raises(ValueError, match="--token-ids cl100k needs tiktoken") as refused:
        cl100k.Cl100k()
    assert install_command("tiktoken") in str(refused.value)
