"""Names and revisions of repositories."""

from __future__ import annotations

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from model.errors import SourceError
from model.sources.hub.repository import Repository, is_name

TEXTS = (
    *("a", "a/b", "a/b/c", "a-b/c.d_e", "/a", "a/", "-a", "a-", ".a", "a.", "a--b", "a..b"),
    *("a.git", "a/b.git", "A1/_x", "x/_", "_/x", "gpt2", "a:b", "a\\b", "é", "", " ", "a b"),
    *("intfloat/multilingual-e5-small", "x" * 96, "x" * 97, "a/" + "x" * 96, "a@b"),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_name_is_what_huggingface_hub_takes(text: str) -> None:
    try:
        validate_repo_id(text)
        taken = bool(text)
    except HFValidationError:
        taken = False
    assert is_name(text) == (taken and text.isascii())


def test_a_revision_beside_the_name_or_in_it() -> None:
    assert Repository.parse("a/b") == Repository("a/b", None)
    assert Repository.parse("a/b@v1.0") == Repository("a/b", "v1.0")
    assert Repository.parse("a/b", "refs/pr/3") == Repository("a/b", "refs/pr/3")
    assert Repository.parse("a/b@main", "main") == Repository("a/b", "main")
    assert [str(Repository.parse(text)) for text in ("a/b", "a/b@c")] == ["a/b", "a/b@c"]


@pytest.mark.parametrize("revision", ["", "../x", "a/../b", "/etc", "a b", "-x", "a\n"])
def test_what_is_no_revision(revision: str) -> None:
    for given in ((f"a/b@{revision}", None), ("a/b", revision)):
        with pytest.raises(
            SourceError, match="not a revision of a/b: give a branch, tag or commit"
        ):
            Repository.parse(*given)


def test_two_revisions() -> None:
    with pytest.raises(SourceError, match="a/b@v1 names a revision, and --revision v2 another"):
        Repository.parse("a/b@v1", "v2")
