"""`headscope models`, against a service with real engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model.artifact.manifest import Artifact
from service.cli.program import main
from tests.service.harness import listening
from tests.service.repositories import add


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, tiny_artifact: Artifact) -> Iterator[str]:
    root = tmp_path_factory.mktemp("repository")
    for place in ("a/1", "a/2", "org/b"):
        add(root, place, tiny_artifact)
    with listening([], [], models=root, admin_keys="admin") as (_, port):
        yield f"http://127.0.0.1:{port}"


def models(url: str, *words: str, key: str = "admin") -> int:
    return main(["models", *words, "--url", url, "--admin-key", key])


def test_load_swap_and_unload(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(url, "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a@1      unavailable",
        "a@2      unavailable",
        "org/b@1  unavailable",
    ]
    assert models(url, "load", "a@1") == 0
    assert models(url, "load", "org/b") == 0
    assert models(url, "swap", "a") == 0
    assert {"a@2      ready", "org/b@1  ready"} <= {*capsys.readouterr().out.splitlines()}
    assert models(url, "unload", "org/b") == 0
    assert "org/b@1  ready" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["load"], 2, "load needs a NAME[@VERSION]"),
        (["list", "a"], 2, "list takes no name"),
        (["lod", "a"], 2, "did you mean load?"),
        (["load", "a@9"], 1, "404: a has no such version; it has: 1, 2"),
        (["swap", "org/b"], 1, "org/b is not loaded"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    url: str, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    models(url, "unload", "org/b")
    capsys.readouterr()
    assert models(url, *words) == code
    assert says in capsys.readouterr().err


def test_the_key_is_needed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(url, "list", key="other") == 1
    assert "401" in capsys.readouterr().err
