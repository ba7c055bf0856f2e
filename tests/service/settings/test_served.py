"""Models that a service serves, by the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.sources.locate import DEFAULT_MODEL
from service.settings import Settings
from service.settings.served import artifact_of, checkpoint_of, each, served


def test_models_come_before_artifacts_in_the_order_given() -> None:
    settings = Settings(model=["o/b", "o/a"], artifact=["/y", "/x"], threads=7)
    assert served(settings) == ("o/b", "o/a", Path("/y"), Path("/x"))
    alone = each(settings)
    assert [served(one) for one in alone] == [("o/b",), ("o/a",), (Path("/y"),), (Path("/x"),)]
    assert {one.threads for one in alone} == {7}
    assert [artifact_of(one) for one in alone] == [None, None, Path("/y"), Path("/x")]


def test_the_default_model_is_served_where_nothing_is_named() -> None:
    assert served(Settings()) == (DEFAULT_MODEL,)
    (alone,) = each(Settings(revision="v1"))
    assert (checkpoint_of(alone), alone.revision) == (DEFAULT_MODEL, "v1")


def test_a_short_name_is_sentence_transformers_own() -> None:
    assert checkpoint_of(Settings(model="all-MiniLM-L6-v2")) == DEFAULT_MODEL


def test_names_are_given_once_for_each_model() -> None:
    assert len(each(Settings(model=["a", "b"], served_model_name=["x", "y"]))) == 2
    with pytest.raises(ValueError, match="--served-model-name is given 1 times and 2 models"):
        each(Settings(model="a", artifact="/b", served_model_name="x"))


@pytest.mark.parametrize("given", [{"model": ["a", "b"]}, {"artifact": "a"}])
def test_one_model_at_a_time_is_exported(given: dict[str, object]) -> None:
    assert checkpoint_of(Settings(model="o/a")) == "o/a"
    with pytest.raises(ValueError, match="one model at a time"):
        checkpoint_of(Settings(**given))
