"""Options that exclude each other are refused before anything begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.files.options import Encoding, FileOptions, UsageError


@pytest.mark.parametrize(
    ("out", "kind", "url", "problem"),
    [
        ("a.csv", "pooled", None, r"its ending must be one of \.parquet, \.jsonl, \.npy"),
        ("a.npy", "tokens", None, r"a \.npy file cannot hold tokens: write \.npz"),
        ("a.npy", "pooled", "ftp://x", "not an address of http"),
    ],
)
def test_what_is_refused(out: str, kind: str, url: str | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        FileOptions(("a.txt",), Path(out), encoding=Encoding(kind), url=url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (Encoding(chunk_size=9), "--chunk-size is of chunks: add --outputs chunks"),
        (Encoding(late=False), "--no-late is of chunks"),
        (Encoding("tokens", overflow="windows"), "--overflow windows is of chunks"),
        (Encoding(truncate=True, overflow="error"), "--truncate and --overflow error exclude"),
        (
            Encoding("chunks", chunk_size=9, chunk_overlap=5),
            "5 is more than half of --chunk-size 9",
        ),
        (Encoding("chunks", late=False, truncate=True), "with --no-late each chunk is encoded"),
    ],
)
def test_options_of_long_texts_exclude_each_other(wanted: Encoding, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        FileOptions(("a.txt",), Path("a.npz"), encoding=wanted)


def test_what_the_content_follows_from() -> None:
    """Handling of bad rows and the key of a service do not affect the content."""
    one = FileOptions(("a",), Path("a.npy"))
    other = FileOptions(("a",), Path("a.npy"), on_error="skip", api_key="secret", restart=True)
    assert one.identity == other.identity
    assert "secret" not in repr(other)
    assert FileOptions(("a",), Path("a.npy"), column="body").identity != one.identity
