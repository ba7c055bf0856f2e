"""Settings of the served models that exclude one another."""

from __future__ import annotations

import pytest

from service.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODEL", "ARTIFACT", "REVISION", "PRECISION", "POOLING"):
        monkeypatch.delenv(f"HEADSCOPE_{name}", raising=False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"artifact": "/a", "pooling": "splade"}, "--pooling or HEADSCOPE_POOLING is for the exp"),
        ({"model": ["a", "b"], "pooling": "mean"}, "--pooling or HEADSCOPE_POOLING is for the exp"),
        ({"artifact": "/a", "revision": "v1"}, "--revision is for a model"),
        ({"model": ["a", "b"], "revision": "v1"}, "--revision is for one --model"),
        ({"artifact": "/a", "precision": "int8"}, "an artifact has its own"),
    ],
)
def test_what_is_of_an_export_needs_a_model(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Settings(**given)


def test_a_flag_of_the_model_leaves_the_variable_of_the_pooling_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADSCOPE_POOLING", "splade")
    assert Settings().pooling == "splade"
    assert Settings(model="a").pooling is None
    assert Settings(model="a", pooling="mean").pooling == "mean"
